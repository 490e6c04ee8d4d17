"""LanceDB as a Store: a migration fills a second column of vectors in the same table.

The new vectors wait in a table of their own, and become a column in one commit at the end: merging
page by page would rewrite the column of a table a thousand times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import lancedb
import numpy as np
import pyarrow as pa
from lancedb.index import BTree

from app.errors import InvalidFilter, StoreChanged, StoreUnavailable, StoreUnsupported
from app.stores.common import as_json, page_of, row_number, rows_checksum, store_faults
from app.stores.lancedb.columns import (
    DISTANCES,
    FLOATS,
    build_like,
    distance_of,
    find_id,
    find_index,
    find_vector,
    id_filter,
    is_vector,
    quoted,
    to_arrow,
    to_numpy,
)
from app.stores.port import (
    Capabilities,
    Cursor,
    HearRows,
    Hits,
    NewVectors,
    Page,
    RowsChecksum,
    Search,
    Side,
    Store,
    StoreFacts,
    StoreId,
    StoreLocation,
    StoreVectors,
)

#: ids in one condition
IDS_A_FILTER = 1000

#: rows whose new vectors become part of the column at a time
ROWS_A_BATCH = 10_000

#: columns of the table of new vectors
STAGED_ID, STAGED_VECTOR = "id", "vector"

#: the store's name in errors
STORE = "The LanceDB store"


class LancedbStore(Store):
    """A table of a LanceDB database."""

    capabilities = Capabilities(filters=True)

    def __init__(self, location: StoreLocation) -> None:
        if location.url.startswith("db://"):
            raise StoreUnsupported(
                "LanceDB Cloud is not supported, because it does not offer commits of columns. "
                "Use the address of a folder or of an object store.",
                field="address",
            )
        self.location = location
        self._name = location.collection
        self._database: Any = None

    def close(self) -> None:
        self._database = None

    @property
    def database(self) -> Any:
        """The database, opened when it is first used."""
        with faults():
            if self._database is None:
                url = self.location.url
                if "://" not in url and not Path(url).is_dir():
                    raise StoreUnavailable("The folder of the address does not exist.")
                # Every read sees the latest version, as another process may have written it.
                self._database = lancedb.connect(url, read_consistency_interval=timedelta(0))
            return self._database

    def table(self, name: str) -> Any:
        """Return a table. Raises StoreChanged if it does not exist."""
        with faults():
            try:
                return self.database.open_table(name)
            except ValueError as error:
                raise StoreChanged(f"The address has no such table: {error}.") from None

    def open(self) -> tuple[Any, str, str]:
        """Return the latest version of the table, and its columns of ids and of vectors."""
        table = self.table(self._name)
        with faults():
            dataset = table.to_lance()
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
            with faults():
                yield dataset.to_table(columns=list(names), filter=part)

    # --- reading ------------------------------------------------------------------------------

    def facts(self) -> StoreFacts:
        dataset, _, vector = self.open()
        kind, table = dataset.schema.field(vector).type, self.table(self._name)
        with faults():
            rows = dataset.count_rows()  # with a filter, it would read all vectors
            indexed = find_index(table, vector) is not None
            distance = self._distance(table, vector)
        return StoreFacts(
            rows=rows,
            dim=kind.list_size,
            metric=DISTANCES[distance],
            dtype=FLOATS[kind.value_type],
            indexed=indexed,
            vector_field=vector,
            vector_bytes=rows * kind.list_size * kind.value_type.bit_width // 8,
        )

    def _distance(self, table: Any, column: str) -> str:
        return distance_of(table, column, self.location.options.get("distance"))

    def scroll(self, cursor: Cursor | None, limit: int, side: Side = "old") -> Page:
        dataset, id, vector = self.open()
        dim = dataset.schema.field(vector).type.list_size
        with faults():
            start, total = int(cursor or 0), dataset.count_rows()
            while True:
                stop = min(start + limit, total)
                found = dataset.take(list(range(start, stop)), columns=[id, vector])
                vectors = vectors_of(found, id, vector)
                if vectors or stop == total:
                    after = stop if stop < total else None
                    return page_of(list(vectors), vectors, dim, after)
                start = stop

    def sample(self, count: int, seed: int = 0) -> Page:
        dataset, id, vector = self.open()
        with faults():
            total = dataset.count_rows()
            draw = np.random.default_rng(seed).choice(total, min(count, total), replace=False)
            found = dataset.take(sorted(draw.tolist()), columns=[id, vector])
        vectors = vectors_of(found, id, vector)
        return page_of(list(vectors), vectors, dataset.schema.field(vector).type.list_size)

    def fetch(self, ids: Sequence[StoreId], side: Side = "old") -> Page:
        dataset, id, vector = self.open()
        found = self.read(dataset, id, vector, list(dict.fromkeys(ids)))
        return page_of(ids, found, dataset.schema.field(vector).type.list_size)

    def read_field(self, ids: Sequence[StoreId], field: str) -> Sequence[str | None]:
        dataset, id, _ = self.open()
        if field not in dataset.schema.names:
            raise StoreUnsupported(
                f"The table has no column `{field}` of texts. Name one in `text_field`.",
                field="text_field",
            )
        found: dict[StoreId, str | None] = {}
        for part in self._by_ids(dataset, id, ids, [id, field]):
            found |= dict(zip(part[id].to_pylist(), part[field].to_pylist(), strict=True))
        return [found.get(each) for each in ids]

    def find_nearest(self, wanted: Search) -> Sequence[Hits]:
        if wanted.filter is not None and not isinstance(wanted.filter, str):
            raise InvalidFilter(
                'A filter of LanceDB is a condition in SQL, as text: "price < 10".',
                field="filter",
            )
        dataset, id, vector = self.open()
        table = self.table(self._name)
        with faults():
            distance = self._distance(table, vector)
        others = others_of(dataset) if wanted.payload else []
        columns = list(dict.fromkeys([id, *([vector] if wanted.vectors else []), *others]))
        hits = []
        for query in np.asarray(wanted.queries, np.float32):
            nearest = {"column": vector, "q": query, "k": wanted.k, "use_index": not wanted.exact}
            with faults(filtered=wanted.filter is not None):
                found = dataset.to_table(
                    columns=[*columns, "_distance"],
                    filter=wanted.filter,
                    nearest={**nearest, "metric": distance},
                    prefilter=True,
                )
            found = found.filter(found["_distance"].is_valid())
            distances = found["_distance"].to_numpy()
            scores = -distances if distance == "l2" else 1 - distances
            hits.append(
                Hits(
                    found[id].to_pylist(),
                    scores.tolist(),
                    to_numpy(found[vector]) if wanted.vectors else None,
                    found.select(others).to_pylist() if wanted.payload else None,
                )
            )
        return hits

    def checksum(self, hear: HearRows = lambda rows: None) -> RowsChecksum:
        dataset, _, _ = self.open()
        with faults():
            batches = dataset.to_batches(columns=others_of(dataset))
            pages = ([row_number(as_json(row)) for row in each.to_pylist()] for each in batches)
            return rows_checksum(pages, hear)

    def migration(self, tag: str, dim: int) -> NewVectors:
        return SecondColumn(self, tag, dim)


class SecondColumn(NewVectors):
    """The new vectors of one migration: in a table of their own, and then in a column."""

    def __init__(self, store: LancedbStore, tag: str, dim: int) -> None:
        self._store, self._tag, self._dim = store, tag, dim
        self._name = store.location.collection
        self._staged_name = f"{self._name}_anchorage_{tag}"

    @property
    def _staged(self) -> Any:
        """The table of new vectors. Raises StoreChanged if it does not exist."""
        return self._store.table(self._staged_name)

    def prepare(self) -> None:
        dataset, id, vector = self._store.open()
        with faults():
            ids = dataset.to_table(columns=[id])[id]
            if ids.null_count or len(ids.unique()) < len(ids):
                raise StoreChanged(
                    f"The column `{id}` holds an id more than once, or rows without one. "
                    "A migration needs one id for each row. Name another column in `id_field`."
                )
            kind = dataset.schema.field(vector).type.value_type
            fields = [
                pa.field(STAGED_ID, ids.type),
                pa.field(STAGED_VECTOR, pa.list_(kind, self._dim)),
            ]
            schema = pa.schema(fields)
            self._store.database.create_table(self._staged_name, schema=schema, exist_ok=True)

    def write(
        self, ids: Sequence[StoreId], vectors: StoreVectors, *, replace: bool = False
    ) -> None:
        staged = self._staged
        schema = staged.schema
        data = [
            pa.array(ids, schema.field(STAGED_ID).type),
            to_arrow(vectors, schema.field(STAGED_VECTOR).type),
        ]
        with faults():
            merge = staged.merge_insert(STAGED_ID).when_matched_update_all()
            merge.when_not_matched_insert_all().execute(pa.Table.from_arrays(data, schema=schema))

    def read(self, ids: Sequence[StoreId]) -> Page:
        staged = self._staged
        with faults():
            dataset = staged.to_lance()
        found = self._store.read(dataset, STAGED_ID, STAGED_VECTOR, list(dict.fromkeys(ids)))
        return page_of(ids, found, self._dim)

    def count(self) -> int:
        dataset, _, vector = self._store.open()
        column = self._column(vector)
        with faults():
            if column in dataset.schema.names:
                return int(dataset.count_rows(filter=f"{quoted(column)} IS NOT NULL"))
        try:
            return int(self._staged.count_rows())
        except StoreChanged:  # before `prepare`
            return 0

    def count_old(self) -> int:
        dataset, _, vector = self._store.open()
        with faults():
            return int(dataset.count_rows(filter=f"{quoted(vector)} IS NOT NULL"))

    def _column(self, vector: str) -> str:
        return f"{vector}_anchorage_{self._tag}"

    def build_index(self) -> None:
        """Add the column of new vectors to the table, and build an index like the old one."""
        self._drop_column()  # of an earlier run
        dataset, id, vector = self._store.open()
        column, staged = self._column(vector), self._staged
        with faults():
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

        with faults():
            dataset.add_columns(new_vectors, read_columns=[id], batch_size=ROWS_A_BATCH)
            build_like(self._store.table(self._name), vector, column)

    def finish(self) -> None:
        """Drop the table of new vectors. The new column is the application's."""
        with faults():
            self._store.database.drop_table(self._staged_name, ignore_missing=True)

    def abandon(self) -> None:
        self.finish()
        self._drop_column()

    def _drop_column(self) -> None:
        """Drop the column of new vectors with its index, if there is one."""
        try:
            table = self._store.table(self._name)
        except StoreChanged:  # the column went with its table
            return
        with faults():  # by the end of its name, as the old column may be gone
            names = [each for each in table.schema.names if each.endswith(self._column(""))]
            if names:
                table.drop_columns(names)


def faults(*, filtered: bool = False) -> AbstractContextManager[None]:
    """Return a block that raises faults of LanceDB as errors of this project."""
    return store_faults(STORE, (ValueError, RuntimeError, pa.ArrowException), filtered=filtered)


def others_of(dataset: Any) -> list[str]:
    """Return the columns that hold no vectors."""
    return [field.name for field in dataset.schema if not is_vector(field.type)]


def vectors_of(found: pa.Table, id: str, vector: str) -> dict[StoreId, StoreVectors]:
    """Return the vectors of rows that have one, by their ids."""
    found = found.filter(found[vector].is_valid())
    return dict(zip(found[id].to_pylist(), to_numpy(found[vector]), strict=True))
