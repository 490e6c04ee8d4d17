"""LanceDB as a Store: a migration fills a second column of vectors in the same table.

The new vectors wait in a file of their own, and become a column in one commit at the end: merging
page by page would rewrite the column of a table a thousand times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import lancedb
import numpy as np
import pyarrow as pa
from lancedb import index as kinds

from app.errors import (
    InvalidFilter,
    InvalidOption,
    StoreChanged,
    StoreUnavailable,
    StoreUnsupported,
)
from app.stores import port as base
from app.stores.common import as_json, page_of, row_number, rows_checksum, store_faults
from app.stores.port import Cursor, Hits, Page, Search, Side, StoreId, StoreVectors
from app.stores.staged import StagedVectors

STORE = "The LanceDB store"

#: ids in one condition, and rows whose new vectors become part of the column at a time
IDS_A_FILTER, ROWS_A_BATCH = 1000, 10_000

#: types of numbers in vectors
FLOATS = {pa.float16(): "float16", pa.float32(): "float32", pa.float64(): "float64"}

#: LanceDB's distances
DISTANCES: dict[str, base.Metric] = {"cosine": "cosine", "dot": "dot", "l2": "euclidean"}

TWO_COLUMNS = base.StoreNote(
    "two-columns-of-vectors",
    "After the run, the table has two columns of vectors. Where their sizes are equal, "
    "LanceDB refuses searches without `vector_column_name`: let your application send it.",
)
FUNCTION = base.StoreNote(
    "embedding-function",
    "LanceDB embeds rows and queries of this table by a registered function, which is the old "
    "model's. Copy the table without it: `db.create_table('copy', "
    "table.to_arrow().replace_schema_metadata(None))`. Register and migrate the copy. Then create "
    "the table for your application from it, with the new model in `embedding_functions`.",
)


@dataclass(frozen=True, eq=False)
class LanceColumns:
    """One version of a table, with the names of its columns of ids and of vectors.

    index  the configuration of the vectors' index, or None
    """

    table: Any
    dataset: Any
    id: str
    vector: str
    index: Any | None

    @property
    def kind(self) -> pa.DataType:
        """The type of the column of vectors."""
        return self.dataset.schema.field(self.vector).type

    @property
    def others(self) -> list[str]:
        """The columns that hold no vectors."""
        return [field.name for field in self.dataset.schema if not is_vector(field.type)]

    def take(self, rows: Sequence[int], cursor: Cursor | None = None) -> Page:
        """Return the rows at these positions that have a vector."""
        with faults():
            found = self.dataset.take(list(rows), columns=[self.id, self.vector])
        found = found.filter(found[self.vector].is_valid())
        return Page(found[self.id].to_pylist(), to_numpy(found[self.vector]), cursor)

    def by_ids(self, ids: Sequence[StoreId], column: str) -> Iterator[pa.Table]:
        """Yield a column of the rows with these ids."""
        for start in range(0, len(ids), IDS_A_FILTER):
            part = id_filter(self.id, ids[start : start + IDS_A_FILTER])
            with faults():
                yield self.dataset.to_table(columns=[self.id, column], filter=part)

    def fetch(self, ids: Sequence[StoreId]) -> Page:
        found: dict[StoreId, StoreVectors] = {}
        for part in self.by_ids(list(dict.fromkeys(ids)), self.vector):
            part = part.filter(part[self.vector].is_valid())
            found |= dict(zip(part[self.id].to_pylist(), to_numpy(part[self.vector]), strict=True))
        return page_of(ids, found, self.kind.list_size)


class LancedbStore(base.Store):
    """A table of a LanceDB database."""

    capabilities = base.Capabilities(filters=True)

    def __init__(self, location: base.StoreLocation) -> None:
        self.location = location
        self.folder = Path(location.url.removeprefix("file://"))
        self._database: Any = None

    def close(self) -> None:
        self._database = None

    @property
    def database(self) -> Any:
        """The database, opened when it is first used."""
        with faults():
            if self._database is None:
                if not self.folder.is_dir():
                    raise StoreUnavailable(
                        "The address is no folder. Copy a database of an object store or of "
                        "LanceDB Cloud to a folder, and name that."
                    )
                # Every read sees the latest version, as another process may have written it.
                url, latest = self.location.url, timedelta(0)
                self._database = lancedb.connect(url, read_consistency_interval=latest)
            return self._database

    def table(self) -> Any:
        """Return the table. Raises StoreChanged if there is none."""
        with faults():
            try:
                return self.database.open_table(self.location.collection)
            except ValueError as error:
                raise StoreChanged(f"The address has no such table: {error}.") from None

    def open(self) -> LanceColumns:
        """Return the latest version of the table."""
        table = self.table()
        with faults():
            dataset, indices = table.to_lance(), table.list_indices()
        id, vector = (
            find_id(self.location, dataset.schema),
            find_vector(self.location, dataset.schema),
        )
        found = [each for each in indices if list(each.columns) == [vector]]
        return LanceColumns(table, dataset, id, vector, found[0] if found else None)

    def distance(self, found: LanceColumns) -> str:
        """Return the distance of the index, else of the option `distance`, else `l2`."""
        with faults():
            stats = None if found.index is None else found.table.index_stats(found.index.name)
        if stats is not None and stats.distance_type in DISTANCES:
            return str(stats.distance_type)
        option = self.location.options.get("distance") or "l2"
        if option not in DISTANCES:
            raise InvalidOption(
                f"`distance` of the options is {option!r}. It is one of {', '.join(DISTANCES)}.",
                field="options",
            )
        return str(option)

    # --- reading ------------------------------------------------------------------------------

    def facts(self) -> base.StoreFacts:
        found = self.open()
        kind = found.kind
        with faults():
            rows = found.dataset.count_rows()  # with a filter, it would read all vectors
            embeds = b"embedding_functions" in (found.table.schema.metadata or {})
        return base.StoreFacts(
            rows=rows,
            dim=kind.list_size,
            metric=DISTANCES[self.distance(found)],
            dtype=FLOATS[kind.value_type],
            indexed=found.index is not None,
            vector_field=found.vector,
            can_migrate=not embeds,
            notes=(FUNCTION if embeds else TWO_COLUMNS,),
        )

    def scroll(self, cursor: Cursor | None, limit: int, side: Side = "old") -> Page:
        found = self.open()
        with faults():
            start, total = int(cursor or 0), found.dataset.count_rows()
        while True:
            stop = min(start + limit, total)
            page = found.take(range(start, stop), stop if stop < total else None)
            if len(page.ids) or page.cursor is None:
                return page
            start = stop

    def sample(self, count: int, seed: int = 0) -> Page:
        found = self.open()
        with faults():
            total = found.dataset.count_rows()
        draw = np.random.default_rng(seed).choice(total, min(count, total), replace=False)
        return found.take(sorted(draw.tolist()))

    def fetch(self, ids: Sequence[StoreId], side: Side = "old") -> Page:
        return self.open().fetch(ids)

    def read_field(self, ids: Sequence[StoreId], field: str) -> Sequence[str | None]:
        table = self.open()
        if field not in table.dataset.schema.names:
            raise StoreUnsupported(
                f"The table has no column `{field}` of texts. Name another in `text_field`.",
                field="text_field",
            )
        found: dict[StoreId, Any] = {}
        for part in table.by_ids(ids, field):
            found |= dict(zip(part[table.id].to_pylist(), part[field].to_pylist(), strict=True))
        return [text if isinstance(text := found.get(each), str) else None for each in ids]

    def find_nearest(self, wanted: Search) -> Sequence[Hits]:
        if wanted.filter is not None and not isinstance(wanted.filter, str):
            raise InvalidFilter(
                'A filter of LanceDB is a condition in SQL, as text: "price < 10".', field="filter"
            )
        table = self.open()
        distance, others = self.distance(table), table.others if wanted.payload else []
        columns = dict.fromkeys([table.id, *[table.vector] * wanted.vectors, *others, "_distance"])
        nearest = {"column": table.vector, "k": wanted.k, "metric": distance}
        hits = []
        for query in np.asarray(wanted.queries, np.float32):
            with faults(filtered=wanted.filter is not None):
                found = table.dataset.to_table(
                    columns=list(columns),
                    filter=wanted.filter,
                    nearest={**nearest, "q": query, "use_index": not wanted.exact},
                    prefilter=True,
                )
            found = found.filter(found["_distance"].is_valid())
            distances = found["_distance"].to_numpy()
            hits.append(
                Hits(
                    found[table.id].to_pylist(),
                    (-distances if distance == "l2" else 1 - distances).tolist(),
                    to_numpy(found[table.vector]) if wanted.vectors else None,
                    found.select(others).to_pylist() if wanted.payload else None,
                )
            )
        return hits

    def migration(self, tag: str, dim: int) -> base.NewVectors:
        return SecondColumn(self, tag, dim)


class SecondColumn(StagedVectors):
    """The new vectors of one migration, which become a column in one commit."""

    def __init__(self, store: LancedbStore, tag: str, dim: int) -> None:
        name = f"{store.location.collection}.anchorage-{tag}"
        super().__init__(STORE, store.folder / name, dim)
        self._source, self._tag = store, tag

    def ids(self) -> Sequence[StoreId]:
        old = self._source.open()
        with faults():
            ids = old.dataset.to_table(columns=[old.id])[old.id]
        if ids.null_count or len(ids.unique()) < len(ids):
            raise StoreChanged(
                f"The column `{old.id}` holds an id more than once, or rows without one. "
                "A migration needs one id for each row. Name another column in `id_field`."
            )
        every: list[StoreId] = ids.to_pylist()
        return every

    def count_old(self) -> int:
        old = self._source.open()
        with faults():
            return int(old.dataset.count_rows(filter=f"{quoted(old.vector)} IS NOT NULL"))

    def checksum(self, hear: base.HearRows) -> base.RowsChecksum:
        found = self._source.open()
        with faults():
            batches = found.dataset.to_batches(columns=found.others)
            pages = ([row_number(as_json(row)) for row in each.to_pylist()] for each in batches)
            return rows_checksum(pages, hear)

    def publish(self, ids: Sequence[StoreId]) -> None:
        """Add the column to the table, and build an index like the old one."""
        self.withdraw()  # of an earlier run
        old = self._source.open()
        column, kind = f"{old.vector}{self._end}", pa.list_(old.kind.value_type, self._dim)

        @lance.batch_udf(output_schema=pa.schema([pa.field(column, kind)]))
        def new_vectors(batch: pa.RecordBatch) -> pa.RecordBatch:
            rows = batch[old.id].to_pylist()
            new = self.read(rows)
            found = dict(zip(new.ids, new.vectors, strict=True))
            empty = dict.fromkeys(rows, np.zeros(self._dim, np.float32))
            values = page_of(rows, empty | found, self._dim).vectors
            lost = pa.array([each not in found for each in rows], pa.bool_())
            numbers = np.ascontiguousarray(values, FLOATS[kind.value_type]).reshape(-1)
            made = pa.FixedSizeListArray.from_arrays(pa.array(numbers), type=kind, mask=lost)
            return pa.record_batch([made], [column])

        with faults():
            old.dataset.add_columns(new_vectors, read_columns=[old.id], batch_size=ROWS_A_BATCH)
            if old.index is not None:
                like = getattr(kinds, old.index.index_type.replace("IvfHnsw", "Hnsw"))
                config = like(distance_type=self._source.distance(old))
                self._source.table().create_index(column, config=config)

    @property
    def _end(self) -> str:
        return f"_anchorage_{self._tag}"

    def withdraw(self) -> None:
        """Drop the column of new vectors with its index, if there is one."""
        try:
            table = self._source.table()
        except StoreChanged:  # the column went with its table
            return
        with faults():  # by the end of its name, as the old column may be gone
            names = [each for each in table.schema.names if each.endswith(self._end)]
            if names:
                table.drop_columns(names)


def faults(*, filtered: bool = False) -> AbstractContextManager[None]:
    """Return a block that raises faults of LanceDB as errors of this project."""
    kinds = (ValueError, RuntimeError, pa.ArrowException)
    return store_faults(STORE, kinds, filtered=filtered)


def is_vector(kind: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_list(kind)) and kind.value_type in FLOATS


def find_id(location: base.StoreLocation, schema: pa.Schema) -> str:
    """Return the column of ids. Raises StoreUnsupported if there is none that can be used."""
    id = location.id_field or "id"
    kind = schema.field(id).type if id in schema.names else pa.null()
    if not (
        pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)
    ):
        raise StoreUnsupported(
            f"The table has no column `{id}` of ids that are integers or text. Name one of "
            f"{', '.join(schema.names)}.",
            field="id_field",
        )
    return id


def find_vector(location: base.StoreLocation, schema: pa.Schema) -> str:
    """Return the column of vectors."""
    own = [field.name for field in schema if is_vector(field.type)]
    choice = [each for each in own if "_anchorage_" not in each]
    name = location.vector_field or (choice[0] if len(choice) == 1 else None)
    if name in own:
        return str(name)
    if name is not None and name not in schema.names:
        raise StoreChanged(f"The table has no column `{name}`. Somebody deleted or renamed it.")
    problem = f"{len(choice)} columns of vectors" if name is None else f"no vectors in `{name}`"
    raise StoreUnsupported(
        f"The table has {problem}. Name one in `vector_field`, which holds lists of a fixed size "
        "of float16, float32 or float64: binary and multi-vectors cannot be translated.",
        field="vector_field",
    )


def to_numpy(column: pa.ChunkedArray) -> StoreVectors:
    """Return the vectors (n, d) of rows that have one, as float32."""
    flat = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    vectors: StoreVectors = flat.astype(np.float32)  # a copy, because Arrow's is read-only
    return vectors.reshape(-1, column.type.list_size)


def id_filter(column: str, ids: Sequence[StoreId]) -> str:
    """Return a condition in SQL: the rows with these ids."""
    values = [
        "'" + id.replace("'", "''") + "'" if isinstance(id, str) else str(int(id)) for id in ids
    ]
    return f"{quoted(column)} IN ({', '.join(values)})"


def quoted(column: str) -> str:
    """Return the name of a column in SQL."""
    return "`" + column.replace("`", "``") + "`"
