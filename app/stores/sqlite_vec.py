"""sqlite-vec as a Store: a migration fills a second vec0 table next to the first.

Each call opens the file anew, in one transaction.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import sqlite_vec

from app.errors import (
    ConnectorMissing,
    InvalidFilter,
    StoreChanged,
    StoreUnavailable,
    StoreUnsupported,
)
from app.stores.common import (
    as_json,
    page_of,
    random_runs,
    row_number,
    rows_checksum,
    store_faults,
)
from app.stores.port import (
    Capabilities,
    Cursor,
    HearRows,
    Hits,
    Metric,
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

STORE = "The sqlite-vec store"

#: rows whose checksum is read at once
ROWS_AT_ONCE = 500

#: most results of one search of a vec0 table
MAX_RESULTS = 4096

#: distances of vec0
DISTANCES: dict[str, Metric] = {"cosine": "cosine", "l2": "euclidean"}

#: comparisons of vec0 that a filter may use
COMPARISONS = ("=", "!=", "<", "<=", ">", ">=")

#: a statement of the keys in a JSON array of ids
KEYS_OF_IDS = "SELECT 0 AS place, value AS key FROM json_each(?)"

#: the text of a vec0 table's definition, and one of its columns of vectors
DEFINITION = re.compile(r"using\s+vec0\s*\((.*)\)\s*$", re.IGNORECASE | re.DOTALL)
VECTOR = re.compile(r"(\w+)\s+(float|f32|int8|i8|bit)\s*\[\s*(\d+)\s*\]([^,]*)", re.IGNORECASE)

#: how a vector of each type is copied
COPIED = {"int8": "vec_int8({})", "i8": "vec_int8({})", "bit": "vec_bit({})"}


def load_sqlite() -> Any:
    """Return the first module of SQLite that can load extensions."""
    for name in ("sqlite3", "pysqlite3"):
        try:
            module = import_module(name)
        except ModuleNotFoundError:
            continue
        if hasattr(module, "Connection") and hasattr(module.Connection, "enable_load_extension"):
            return module
    raise ConnectorMissing(
        "The sqlite3 module of this Python cannot load extensions. Ask the operator to install "
        "`pysqlite3-binary`, or to run the service with a Python whose sqlite3 loads extensions.",
        field="kind",
    )


SQLITE = load_sqlite()


@dataclass(frozen=True, eq=False)
class VecTable:
    """A vec0 table as its definition says.

    arguments  columns and options as they were written, with the dimensions at `place`
    key        the column of ids; `rowid` if none is named
    others     all columns but the key and the vectors, each with how it is copied: `{}`, or a
               function of it
    """

    name: str
    arguments: str
    place: tuple[int, int]
    key: str
    text_key: bool
    vector: str
    dim: int
    distance: str
    others: Mapping[str, str]

    @property
    def keys(self) -> str:
        """The rows in an order, from the hidden table of ids: vec0 itself has no ranges."""
        key = "id" if self.text_key else "rowid"
        return f"SELECT rowid AS place, {key} AS key FROM {quoted(self.name + '_rowids')}"

    def has_id(self, id: StoreId) -> bool:
        """Return whether the id has the type of the table's ids."""
        return isinstance(id, str) if self.text_key else isinstance(id, int)

    def statement(self, name: str, dim: int) -> str:
        """Return the statement that creates such a table with other vectors."""
        start, end = self.place
        arguments = f"{self.arguments[:start]}{dim}{self.arguments[end:]}"
        return f"CREATE VIRTUAL TABLE IF NOT EXISTS {quoted(name)} USING vec0({arguments})"


class SqliteVecStore(Store):
    """A vec0 table of a SQLite file."""

    capabilities = Capabilities(filters=True)

    def __init__(self, location: StoreLocation) -> None:
        self.location = location

    def close(self) -> None:
        """Do nothing: no connection outlives a call."""

    @contextmanager
    def session(self, *, filtered: bool = False) -> Iterator[Any]:
        """Yield a connection in one transaction, which is committed at the end."""
        path = Path(self.location.url.removeprefix("file://"))
        if not path.is_file():
            raise StoreUnavailable("The address names no file. Ask the operator to correct it.")
        kinds = (SQLITE.Error, OverflowError)  # of a number in a filter
        with store_faults(STORE, kinds, filtered=filtered):
            url = f"{path.resolve().as_uri()}?mode=rw"  # does not create it
            opened = SQLITE.connect(url, uri=True, isolation_level=None)
            with closing(opened) as database:
                database.enable_load_extension(True)
                sqlite_vec.load(database)
                database.enable_load_extension(False)
                database.execute("BEGIN")
                yield database
                database.execute("COMMIT")

    @property
    def table(self) -> VecTable:
        """The table as it is now. Raises StoreChanged, StoreUnsupported."""
        name = self.location.collection
        with self.session() as database:
            found = database.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (name,))
            definition = DEFINITION.search(*found.fetchone() or [""])
            info = database.execute("SELECT name FROM pragma_table_info(?)", (name,))
            columns = [each for (each,) in info]
        if definition is None:
            raise StoreChanged(f"The file has no vec0 table `{name}`.")
        return read_definition(name, definition[1], columns, self.location)

    def read(
        self, table: VecTable, keys: str, values: Sequence[Any], columns: Sequence[str]
    ) -> list[tuple[Any, ...]]:
        """Return place, id and `columns` of the rows of a statement of keys, in its order."""
        names = "".join(f", v.{quoted(each)}" for each in columns)
        statement = (
            f"SELECT r.place, r.key{names} FROM ({keys}) AS r "
            f"CROSS JOIN {quoted(table.name)} AS v ON v.{quoted(table.key)} = r.key "
            "ORDER BY r.place"
        )
        with self.session() as database:
            return list(database.execute(statement, values))

    def fetch_from(self, table: VecTable, ids: Sequence[StoreId]) -> Page:
        known = json.dumps([each for each in ids if table.has_id(each)])
        found = self.read(table, KEYS_OF_IDS, (known,), [table.vector])
        return page_of(ids, {id: np.frombuffer(blob, "<f4") for _, id, blob in found}, table.dim)

    # --- reading ------------------------------------------------------------------------------

    def facts(self) -> StoreFacts:
        table = self.table
        rows = self.count_rows(table)
        return StoreFacts(
            rows=rows,
            dim=table.dim,
            metric=DISTANCES[table.distance],
            vector_bytes=4 * rows * table.dim,
            vector_field=table.vector,
        )

    def count_rows(self, table: VecTable) -> int:
        with self.session() as database:
            return int(database.execute(f"SELECT count(*) FROM ({table.keys})").fetchone()[0])

    def scroll(self, cursor: Cursor | None, limit: int, side: Side = "old") -> Page:
        table = self.table
        found = self._page(table, cursor, limit, [table.vector])
        vectors = {id: np.frombuffer(blob, "<f4") for _, id, blob in found}
        after = found[-1][0] if len(found) == limit else None
        return page_of(list(vectors), vectors, table.dim, after)

    def _page(
        self, table: VecTable, cursor: Cursor | None, limit: int, columns: Sequence[str]
    ) -> list[tuple[Any, ...]]:
        after = () if cursor is None else (cursor,)
        keys = f"{table.keys}{' WHERE rowid > ?' * len(after)} ORDER BY rowid LIMIT ?"
        return self.read(table, keys, (*after, limit), columns)

    def sample(self, count: int, seed: int = 0) -> Page:
        table = self.table
        keys = f"{table.keys} ORDER BY rowid LIMIT ? OFFSET ?"
        vectors: dict[StoreId, StoreVectors] = {}
        for start, length in random_runs(self.count_rows(table), count, seed):
            found = self.read(table, keys, (length, start), [table.vector])
            vectors |= {id: np.frombuffer(blob, "<f4") for _, id, blob in found}
        return page_of(list(vectors), vectors, table.dim)

    def fetch(self, ids: Sequence[StoreId], side: Side = "old") -> Page:
        return self.fetch_from(self.table, ids)

    def checksum(self, hear: HearRows = lambda rows: None) -> RowsChecksum:
        return rows_checksum(self._numbers(), hear)

    def _numbers(self) -> Iterator[list[int]]:
        """Yield numbers of all that is not the vector, page by page."""
        table, cursor = self.table, None
        while True:
            found = self._page(table, cursor, ROWS_AT_ONCE, list(table.others))
            yield [row_number(as_json(row[1:])) for row in found]
            if len(found) < ROWS_AT_ONCE:
                return
            cursor = found[-1][0]

    def migration(self, tag: str, dim: int) -> NewVectors:
        return SecondTable(self, tag, dim)

    def read_field(self, ids: Sequence[StoreId], field: str) -> Sequence[str | None]:
        """Return texts of a column of the vec0 table, or, as `table.column`, of another table."""
        table = self.table
        known = json.dumps([each for each in ids if table.has_id(each)])
        name, _, column = field.rpartition(".")
        if not name:
            columns = [column] if column in table.others else []
            rows = self.read(table, KEYS_OF_IDS, (known,), columns)
            found = {id: row[0] for _, id, *row in rows if row}
        else:
            found = self._read_other(name, column, table, known)
        return [text if isinstance(text := found.get(id), str) else None for id in ids]

    def _read_other(
        self, name: str, column: str, table: VecTable, known: str
    ) -> dict[StoreId, Any]:
        """Return a column of another table, by the ids in the JSON array `known`."""
        with self.session() as database:
            info = database.execute("SELECT name FROM pragma_table_info(?)", (name,))
            columns = [each for (each,) in info]
            key = next((each for each in (table.key, "id") if each in columns), "rowid")
            if column not in columns:
                raise StoreUnsupported(
                    f"The file has no column `{column}` in a table `{name}`. Name the text as "
                    "`column` of the vec0 table, or as `table.column`.",
                    field="text_field",
                )
            statement = (
                f"SELECT r.value, t.{quoted(column)} FROM json_each(?) AS r "
                f"JOIN {quoted(name)} AS t ON t.{quoted(key)} = r.value"
            )
            return dict(database.execute(statement, (known,)))

    def find_nearest(self, wanted: Search) -> Sequence[Hits]:
        table = self.table
        if wanted.k > MAX_RESULTS:
            raise StoreUnsupported(
                f"`k` is {wanted.k}, and sqlite-vec returns at most {MAX_RESULTS} rows. Ask for "
                "fewer.",
                field="k",
            )
        others = list(table.others) if wanted.payload else []
        names = [table.key, "distance", *[table.vector] * wanted.vectors, *others]
        condition, values = read_filter(wanted.filter, table.others)
        statement = (
            f"SELECT {', '.join(map(quoted, names))} FROM {quoted(table.name)} "
            f"WHERE {quoted(table.vector)} MATCH ? AND k = ?{condition} ORDER BY distance"
        )
        hits = []
        with self.session(filtered=wanted.filter is not None) as database:
            for query in np.ascontiguousarray(wanted.queries, "<f4"):
                found = database.execute(statement, (query.tobytes(), wanted.k, *values)).fetchall()
                distances = np.asarray([row[1] for row in found], np.float64)
                scores = -distances if table.distance == "l2" else 1 - distances
                blobs = b"".join(row[2] for row in found) if wanted.vectors else b""
                payloads = [
                    dict(zip(others, row[2 + wanted.vectors :], strict=True)) for row in found
                ]
                hits.append(
                    Hits(
                        [row[0] for row in found],
                        scores.tolist(),
                        np.frombuffer(blobs, "<f4").reshape(-1, table.dim)
                        if wanted.vectors
                        else None,
                        [payload_of(each) for each in payloads] if wanted.payload else None,
                    )
                )
        return hits


class SecondTable(NewVectors):
    """The new vectors of one migration, in a second vec0 table with all other columns."""

    def __init__(self, store: SqliteVecStore, tag: str, dim: int) -> None:
        self._store, self._dim = store, dim
        self._name = f"{store.location.collection}_anchorage_{tag}"

    @property
    def _new(self) -> VecTable:
        return replace(self._store.table, name=self._name, dim=self._dim)

    def prepare(self) -> None:
        statement = self._store.table.statement(self._name, self._dim)
        with self._store.session() as database:
            database.execute(statement)

    def write(
        self, ids: Sequence[StoreId], vectors: StoreVectors, *, replace: bool = False
    ) -> None:
        old = self._store.table
        names = [old.key, *old.others]
        copied = [quoted(old.key), *(how.format(quoted(each)) for each, how in old.others.items())]
        insert = (
            f"INSERT INTO {quoted(self._name)} ({', '.join(map(quoted, (*names, old.vector)))}) "
            f"SELECT {', '.join(copied)}, ? FROM {quoted(old.name)} WHERE {quoted(old.key)} = ?"
        )
        blobs = [vector.tobytes() for vector in np.asarray(vectors, "<f4")]
        with self._store.session() as database:
            self._delete(database, ids)
            database.executemany(insert, zip(blobs, ids, strict=True))

    def _delete(self, database: Any, ids: Sequence[StoreId]) -> None:
        statement = f"DELETE FROM {quoted(self._name)} WHERE {quoted(self._store.table.key)} = ?"
        database.executemany(statement, [(id,) for id in ids])

    def read(self, ids: Sequence[StoreId]) -> Page:
        return self._store.fetch_from(self._new, ids)

    def count(self) -> int:
        statement = "SELECT count(*) FROM sqlite_schema WHERE name = ?"
        with self._store.session() as database:
            [exists] = database.execute(statement, (self._name,)).fetchone()
        return self._store.count_rows(self._new) if exists else 0

    def build_index(self) -> None:
        """Delete rows that the application deleted meanwhile; vec0 tables have no other index."""
        gone = (
            f"SELECT key FROM ({self._new.keys}) EXCEPT SELECT key FROM ({self._store.table.keys})"
        )
        with self._store.session() as database:
            self._delete(database, [id for (id,) in database.execute(gone).fetchall()])

    def finish(self) -> None:
        """Do nothing: the table is the application's."""

    def abandon(self) -> None:
        with self._store.session() as database:
            database.execute(f"DROP TABLE IF EXISTS {quoted(self._name)}")


def read_definition(
    name: str, text: str, columns: Sequence[str], location: StoreLocation
) -> VecTable:
    """Read the arguments of a vec0 table, whose first column is the key."""
    key, *rest = columns
    vectors = {found[1]: found for found in VECTOR.finditer(text) if found[1] in rest}
    usable = [each for each, found in vectors.items() if found[2].lower() in ("float", "f32")]
    vector = location.vector_field or (usable[0] if len(usable) == 1 else None)
    if vector is None or vector not in usable:
        raise StoreUnsupported(
            f"Name a column of vectors of `{name}` in `vector_field`. Those of type `float`, which "
            f"can be translated, are: {', '.join(usable) or 'none'}.",
            field="vector_field",
        )
    found = vectors.pop(vector)
    others = dict.fromkeys([each for each in rest if each != vector], "{}")
    others |= {each: COPIED.get(other[2].lower(), "{}") for each, other in vectors.items()}
    metric = re.search(r"distance_metric\s*=\s*(\w+)", found[4])
    table = VecTable(
        name=name,
        arguments=text,
        place=found.span(3),
        key=key,
        text_key=re.search(rf"\b{key}\s+text\s+primary\s+key", text, re.IGNORECASE) is not None,
        vector=vector,
        dim=int(found[3]),
        distance=metric[1].lower() if metric else "l2",
        others=others,
    )
    if table.distance not in DISTANCES:
        raise StoreUnsupported(
            f"The column `{vector}` has the distance `{table.distance}`. Anchorage translates "
            "vectors with the distances `cosine` and `L2`. Choose another column.",
            field="vector_field",
        )
    if location.id_field not in (None, key):
        raise StoreUnsupported(
            f"The ids of `{name}` are in `{key}`. Name it in `id_field`, or leave that out.",
            field="id_field",
        )
    return table


def read_filter(filter: Any, columns: Collection[str]) -> tuple[str, list[Any]]:
    """Return conditions in SQL and their values, of `{"year": {">": 2000}, "topic": "art"}`."""
    if filter is not None and not isinstance(filter, dict):
        raise InvalidFilter("A filter of sqlite-vec is an object of columns.", field="filter")
    text, values = "", []
    for name, wanted in (filter or {}).items():
        for sign, value in (wanted if isinstance(wanted, dict) else {"=": wanted}).items():
            if name not in columns or sign not in COMPARISONS:
                raise InvalidFilter(
                    f"`filter` has the comparison `{name} {sign}`. A search can compare the "
                    f"columns {', '.join(columns) or '(none)'} by one of "
                    f"{' '.join(COMPARISONS)}.",
                    field="filter",
                )
            text += f" AND {quoted(name)} {sign} ?"
            values.append(value)
    return text, values


def quoted(name: str | None) -> str:
    """Return a name in SQL."""
    return '"' + str(name).replace('"', '""') + '"'


def payload_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that JSON can hold: all but bytes."""
    return {name: each for name, each in row.items() if not isinstance(each, bytes)}
