"""LanceDB as a Store: a migration fills a second column of vectors in the same table.

The new vectors wait in a table of their own, and become a column in one commit at the end: merging
page by page would rewrite the column of a table a thousand times.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from lancedb.index import BTree

from app.errors import InvalidFilter, StoreChanged, StoreUnsupported
from app.stores.base import (
    Capabilities,
    Cursor,
    HearRows,
    Hits,
    Metric,
    NewVectors,
    Page,
    RowsChecksum,
    Side,
    Store,
    StoreFacts,
    StoreId,
    StoreLocation,
    StoreNote,
    StoreVectors,
)
from app.stores.common import as_json, page_of, row_number, rows_checksum
from app.stores.lancedb.columns import (
    DISTANCES,
    FLOATS,
    OWN_NAME,
    build_like,
    distance_of,
    find_id,
    find_index,
    find_vector,
    id_filter,
    quoted,
    to_arrow,
    to_numpy,
)
from app.stores.lancedb.connection import LanceConnection
from app.stores.second_collection import fingerprint

#: ids in one condition
IDS_A_FILTER = 1000

#: rows whose new vectors become part of the column at a time
ROWS_A_BATCH = 10_000

#: columns of the table of new vectors
STAGED_ID, STAGED_VECTOR = "id", "vector"

COLUMNS_VISIBLE = StoreNote(
    "columns-are-visible",
    "Clients that read all columns also see the new column, whose name contains `anchorage_`.",
)


class LancedbStore(Store):
    """A table of a LanceDB database."""

    capabilities = Capabilities(filters=True)

    def __init__(self, location: StoreLocation) -> None:
        self.location = location
        self.connection = LanceConnection(location)
        self._name = location.collection

    def close(self) -> None:
        self.connection.close()

    def open(self) -> tuple[Any, str, str]:
        """Return the latest version of the table, and its columns of ids and of vectors."""
        dataset = self.connection.dataset(self._name)
        schema = dataset.schema
        return dataset, find_id(self.location, schema), find_vector(self.location, schema)

    def read(
        self, dataset: Any, id: str, vector: str, ids: Sequence[StoreId]
    ) -> dict[StoreId, StoreVectors]:
        """Return the vectors of these ids that exist, of a column of a table."""
        found: dict[StoreId, StoreVectors] = {}
        for part in self._by_ids(dataset, id, ids, [id, vector]):
            found |= vectors_of(part, id, vector)
        return found

    def _by_ids(
        self, dataset: Any, id: str, ids: Sequence[StoreId], names: Sequence[str]
    ) -> Iterator[pa.Table]:
        for start in range(0, len(ids), IDS_A_FILTER):
            part = id_filter(id, ids[start : start + IDS_A_FILTER])
            with self.connection.faults():
                yield dataset.to_table(columns=list(names), filter=part)

    # --- reading ------------------------------------------------------------------------------

    def facts(self) -> StoreFacts:
        dataset, _, vector = self.open()
        kind, table = dataset.schema.field(vector).type, self.connection.table(self._name)
        with self.connection.faults():
            rows = dataset.count_rows()  # with a filter, it would read all vectors
            indexed = find_index(table, vector) is not None
        return StoreFacts(
            rows=rows,
            dim=kind.list_size,
            metric=self._metric(vector),
            dtype=FLOATS[kind.value_type],
            indexed=indexed,
            vector_field=vector,
            vector_bytes=rows * kind.list_size * kind.value_type.bit_width // 8,
            notes=(COLUMNS_VISIBLE,),
        )

    def _metric(self, column: str) -> Metric:
        table = self.connection.table(self._name)
        with self.connection.faults():
            option = self.location.options.get("distance")
            return DISTANCES[distance_of(table, column, option)]

    def scroll(self, cursor: Cursor | None, limit: int, side: Side = "old") -> Page:
        """Read by position in one version, which a cursor pins."""
        dataset, id, vector = self.open()
        dim = dataset.schema.field(vector).type.list_size
        with self.connection.faults():
            if cursor is not None:
                dataset = dataset.checkout_version(cursor["version"])
            start, total = 0 if cursor is None else int(cursor["at"]), dataset.count_rows()
            while True:
                stop = min(start + limit, total)
                found = dataset.take(list(range(start, stop)), columns=[id, vector])
                vectors = vectors_of(found, id, vector)
                after = {"version": dataset.version, "at": stop} if stop < total else None
                if vectors or after is None:
                    return page_of(list(vectors), vectors, dim, after)
                start = stop

    def sample(self, count: int, seed: int = 0) -> Page:
        dataset, id, vector = self.open()
        with self.connection.faults():
            total = dataset.count_rows()
            draw = np.random.default_rng(seed).choice(total, min(count, total), replace=False)
            found = dataset.take(sorted(draw.tolist()), columns=[id, vector])
        vectors = vectors_of(found, id, vector)
        return page_of(list(vectors), vectors, dataset.schema.field(vector).type.list_size)

    def fetch(self, ids: Sequence[StoreId], side: Side = "old") -> Page:
        dataset, id, vector = self.open()
        found = self.read(dataset, id, vector, list(dict.fromkeys(ids)))
        return page_of(ids, found, dataset.schema.field(vector).type.list_size)

    def read_field(self, ids: Sequence[StoreId], field: str | None) -> Sequence[str | None]:
        dataset, id, _ = self.open()
        if field is None or field not in dataset.schema.names:
            raise StoreUnsupported(
                "The store names no column with the texts. Name one in `text_field`.",
                field="text_field",
            )
        found: dict[StoreId, str | None] = {}
        for part in self._by_ids(dataset, id, ids, [id, field]):
            found |= dict(zip(part[id].to_pylist(), part[field].to_pylist(), strict=True))
        return [found.get(each) for each in ids]

    def search(
        self,
        queries: StoreVectors,
        k: int,
        *,
        filter: Any = None,
        side: Side = "old",
        exact: bool = False,
        vectors: bool = False,
        payload: bool = False,
    ) -> Sequence[Hits]:
        if filter is not None and not isinstance(filter, str):
            raise InvalidFilter(
                'A filter of LanceDB is a condition in SQL, as text: "price < 10".',
                field="filter",
            )
        dataset, id, vector = self.open()
        metric = self._metric(vector)
        others = others_of(dataset, vector) if payload else []
        columns = list(dict.fromkeys([id, *([vector] if vectors else []), *others]))
        distance = {value: key for key, value in DISTANCES.items()}[metric]
        hits = []
        for query in np.asarray(queries, np.float32):
            nearest = {"column": vector, "q": query, "k": k, "use_index": not exact}
            with self.connection.faults():
                found = dataset.to_table(
                    columns=[*columns, "_distance"],
                    filter=filter,
                    nearest={**nearest, "metric": distance},
                    prefilter=True,
                )
            found = found.filter(found["_distance"].is_valid())
            distances = found["_distance"].to_numpy()
            scores = -distances if metric == "euclidean" else 1 - distances
            hits.append(
                Hits(
                    found[id].to_pylist(),
                    scores.tolist(),
                    to_numpy(found[vector]) if vectors else None,
                    found.select(others).to_pylist() if payload else None,
                )
            )
        return hits

    def checksum(self, hear: HearRows = lambda rows: None) -> RowsChecksum:
        dataset, _, vector = self.open()
        with self.connection.faults():
            batches = dataset.to_batches(columns=others_of(dataset, vector))
            pages = ([row_number(as_json(row)) for row in each.to_pylist()] for each in batches)
            return rows_checksum(pages, hear)

    def migration(self, tag: str, dim: int) -> NewVectors:
        return SecondColumn(self, tag, dim)


class SecondColumn(NewVectors):
    """The new vectors of one migration: in a table of their own, and then in a column."""

    def __init__(self, store: LancedbStore, tag: str, dim: int) -> None:
        self._store, self._tag, self._dim = store, tag, dim
        self._connection, self._name = store.connection, store.location.collection
        self._staged_name = f"{self._name}_anchorage_{tag}"

    @property
    def _staged(self) -> Any:
        """The table of new vectors. Raises StoreChanged if it does not exist."""
        return self._connection.table(self._staged_name)

    def prepare(self) -> None:
        if self._connection.find_table(self._staged_name) is not None:
            return
        dataset, id, vector = self._store.open()
        with self._connection.faults():
            if not has_unique_ids(dataset, id):
                raise StoreChanged(
                    f"The column `{id}` holds an id more than once, or rows without one. "
                    "A migration needs one id for each row. Name another column in `id_field`."
                )
            kind = dataset.schema.field(vector).type.value_type
            fields = [
                pa.field(STAGED_ID, dataset.schema.field(id).type),
                pa.field(STAGED_VECTOR, pa.list_(kind, self._dim)),
            ]
            self._connection.database.create_table(self._staged_name, schema=pa.schema(fields))

    def write(
        self, ids: Sequence[StoreId], vectors: StoreVectors, *, replace: bool = False
    ) -> None:
        staged = self._staged
        schema = staged.schema
        data = [
            pa.array(ids, schema.field(STAGED_ID).type),
            to_arrow(vectors, schema.field(STAGED_VECTOR).type),
        ]
        with self._connection.faults():
            for start in range(0, len(ids), IDS_A_FILTER):
                there = id_filter(STAGED_ID, ids[start : start + IDS_A_FILTER])
                if staged.count_rows(there):
                    staged.delete(there)
            staged.add(pa.Table.from_arrays(data, schema=schema))

    def read(self, ids: Sequence[StoreId]) -> Page:
        staged = self._staged.to_lance()
        found = self._store.read(staged, STAGED_ID, STAGED_VECTOR, list(dict.fromkeys(ids)))
        return page_of(ids, found, self._dim)

    def count(self) -> int:
        dataset, _, vector = self._store.open()
        column = self._column(vector)
        with self._connection.faults():
            if column in dataset.schema.names:
                return int(dataset.count_rows(filter=f"{quoted(column)} IS NOT NULL"))
            staged = self._connection.find_table(self._staged_name)
            return 0 if staged is None else int(staged.count_rows())

    def count_old(self) -> int:
        dataset, _, vector = self._store.open()
        with self._connection.faults():
            return int(dataset.count_rows(filter=f"{quoted(vector)} IS NOT NULL"))

    def _column(self, vector: str) -> str:
        return f"{vector}_anchorage_{self._tag}"

    def build_index(self) -> None:
        """Add the column of new vectors to the table, and build an index like the old one."""
        dataset, id, vector = self._store.open()
        column, staged = self._column(vector), self._staged
        self._drop_column(column)
        with self._connection.faults():
            staged.create_index(STAGED_ID, config=BTree(), replace=True)
        kind = staged.schema.field(STAGED_VECTOR).type

        @lance.batch_udf(output_schema=pa.schema([pa.field(column, kind)]))
        def new_vectors(batch: pa.RecordBatch) -> pa.RecordBatch:
            ids = batch[id].to_pylist()
            found: dict[StoreId, StoreVectors] = {}
            for start in range(0, len(ids), IDS_A_FILTER):
                part = id_filter(STAGED_ID, ids[start : start + IDS_A_FILTER])
                # `to_lance` would wait for the threads that wait for this function
                rows = staged.search().where(part).limit(IDS_A_FILTER).to_arrow()
                found |= vectors_of(rows, STAGED_ID, STAGED_VECTOR)
            empty = dict.fromkeys(ids, np.zeros(self._dim, np.float32))
            values = page_of(ids, empty | found, self._dim).vectors
            lost = pa.array([each not in found for each in ids], pa.bool_())
            return pa.record_batch([to_arrow(values, kind, lost)], [column])

        def add() -> None:
            latest = self._connection.dataset(self._name)
            latest.add_columns(new_vectors, read_columns=[id], batch_size=ROWS_A_BATCH)

        self._connection.committing(add)
        table = self._connection.table(self._name)
        dims = dataset.schema.field(vector).type.list_size, self._dim
        self._connection.committing(lambda: build_like(table, vector, column, *dims))

    def finish(self) -> None:
        """Drop the table of new vectors. The new column is the application's."""
        if self._connection.find_table(self._staged_name) is not None:
            with self._connection.faults():
                self._connection.database.drop_table(self._staged_name)

    def abandon(self) -> None:
        self._drop_column(self._column(self._store.open()[2]))
        self.finish()

    def _drop_column(self, column: str) -> None:
        """Drop a column with its index, if there is one."""
        table = self._connection.table(self._name)
        if column not in table.schema.names:
            return
        with self._connection.faults():
            index = find_index(table, column)
            if index is not None:
                self._connection.committing(lambda: table.drop_index(index.name))
            self._connection.committing(lambda: table.drop_columns([column]))


def others_of(dataset: Any, vector: str) -> list[str]:
    """Return the columns that are neither the store's vectors nor new ones of a migration."""
    return [name for name in dataset.schema.names if name != vector and not OWN_NAME.search(name)]


def vectors_of(found: pa.Table, id: str, vector: str) -> dict[StoreId, StoreVectors]:
    """Return the vectors of rows that have one, by their ids."""
    rows = zip(
        found[id].to_pylist(),
        to_numpy(found[vector]),
        found[vector].is_valid().to_pylist(),
        strict=True,
    )
    return {id: each for id, each, ok in rows if ok}


def has_unique_ids(dataset: Any, column: str) -> bool:
    """Return whether each row has an id, and no two the same. Holds eight bytes of each row."""
    seen = array("Q")
    for batch in dataset.to_batches(columns=[column]):
        seen.extend(fingerprint(id, None) for id in batch[column].to_pylist())
        if batch[column].null_count:
            return False
    numbers = np.sort(np.asarray(seen, np.uint64))
    return not bool((numbers[1:] == numbers[:-1]).any())
