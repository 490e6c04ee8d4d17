"""sqlite-vec as a Store: a migration fills a second vec0 table next to the first.

Each call opens the file anew, and each transaction is short: SQLite lets one connection write at a
time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import sqlite_vec

from app.errors import (
    AnchorageError,
    ConnectorMissing,
    InvalidFilter,
    StoreChanged,
    StoreUnavailable,
    StoreUnsupported,
)
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
from app.stores.common import (
    as_json,
    fault_of,
    page_of,
    refuse_new_side,
    row_number,
    rows_checksum,
    store_faults,
)
from app.stores.second_collection import random_runs

STORE = "The sqlite-vec store"

#: how long a call waits for the lock of another client
BUSY_S = 5.0

#: rows that one transaction writes, so that clients wait little for the lock
ROWS_A_TRANSACTION = 500

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
VECTOR = re.compile(r"(\w+)\s+(float|f32|int8|i8|bit)\s*\[\s*(\d+)\s*\](.*)", re.I | re.S)

#: how a vector of each type is copied
COPIED = {"int8": "vec_int8({})", "i8": "vec_int8({})", "bit": "vec_bit({})"}

NO_WAL = StoreNote(
    "readers-wait",
    "The file is not in WAL mode, so that readers wait for each write of the migration, and it "
    "for them. `PRAGMA journal_mode=WAL` changes that.",
)


def load_sqlite(names: Sequence[str] = ("sqlite3", "pysqlite3")) -> Any:
    """Return the first module of SQLite that can load extensions."""
    for name in names:
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

    arguments  columns and options as they were written; the one at `index` has the vectors
    key        the column of ids; `rowid` if none is named
    settings   what follows the type of the vectors, as `distance_metric=cosine`
    others     all other columns, each with how it is copied: `{}`, or a function of it
    filtered   columns that a filter may name
    """

    name: str
    arguments: Sequence[str]
    index: int
    key: str
    text_key: bool
    vector: str
    dim: int
    settings: str
    others: Mapping[str, str]
    filtered: frozenset[str]

    @property
    def distance(self) -> str:
        found = re.search(r"distance_metric\s*=\s*(\w+)", self.settings)
        return found[1].lower() if found else "l2"

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
        arguments = list(self.arguments)
        arguments[self.index] = f"{self.vector} float[{dim}]{self.settings}"
        return f"CREATE VIRTUAL TABLE {quoted(name)} USING vec0({', '.join(arguments)})"


class SqliteVecStore(Store):
    """A vec0 table of a SQLite file."""

    capabilities = Capabilities(filters=True)

    def __init__(self, location: StoreLocation) -> None:
        self.location = location

    def close(self) -> None:
        """Do nothing: no connection outlives a call."""

    @contextmanager
    def session(self, begin: str = "BEGIN") -> Iterator[Any]:
        """Yield a connection in one transaction, which is committed at the end."""
        path = Path(self.location.url.removeprefix("file://"))
        if not path.is_file():
            raise StoreUnavailable("The address names no file. Ask the operator to correct it.")
        with store_faults(STORE, (), _translate):
            url = f"{path.resolve().as_uri()}?mode=rw"  # does not create it
            opened = SQLITE.connect(url, uri=True, timeout=BUSY_S, isolation_level=None)
            with closing(opened) as database:
                database.enable_load_extension(True)
                sqlite_vec.load(database)
                database.enable_load_extension(False)
                database.execute(begin)
                yield database
                database.execute("COMMIT")

    def writing(self) -> Any:
        """Return a session that waits for the write lock before its first read."""
        return self.session("BEGIN IMMEDIATE")

    def find_table(self, name: str | None = None) -> VecTable | None:
        """Return a vec0 table, by default the store's; None if there is none of that name."""
        name = name or self.location.collection
        with self.session() as database:
            found = database.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'")
            texts = {each: match[1] for each, sql in found if (match := DEFINITION.search(sql))}
        if name in texts:
            return read_definition(name, texts[name], self.location)
        if name != self.location.collection:
            return None
        known = ", ".join(f"`{each}`" for each in sorted(texts)) or "none"
        raise StoreChanged(f"The file has no vec0 table `{name}`. Its vec0 tables: {known}.")

    @property
    def table(self) -> VecTable:
        found = self.find_table()
        assert found is not None
        return found

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
        return page_of(ids, {id: unpack(blob, table) for _, id, blob in found}, table.dim)

    # --- reading ------------------------------------------------------------------------------

    def facts(self) -> StoreFacts:
        table = self.table
        rows = self.count_rows(table)
        with self.session() as database:
            is_wal = database.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        return StoreFacts(
            rows=rows,
            dim=table.dim,
            metric=DISTANCES[table.distance],
            vector_bytes=4 * rows * table.dim,
            vector_field=table.vector,
            notes=() if is_wal else (NO_WAL,),
        )

    def count_rows(self, table: VecTable) -> int:
        with self.session() as database:
            return int(database.execute(f"SELECT count(*) FROM ({table.keys})").fetchone()[0])

    def scroll(self, cursor: Cursor | None, limit: int, side: Side = "old") -> Page:
        refuse_new_side(side)
        table = self.table
        found = self._page(table, cursor, limit, [table.vector])
        vectors = {id: unpack(blob, table) for _, id, blob in found}
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
            vectors |= {id: unpack(blob, table) for _, id, blob in found}
        return page_of(list(vectors), vectors, table.dim)

    def fetch(self, ids: Sequence[StoreId], side: Side = "old") -> Page:
        refuse_new_side(side)
        return self.fetch_from(self.table, ids)

    def checksum(self, hear: HearRows = lambda rows: None) -> RowsChecksum:
        return rows_checksum(self._numbers(), hear)

    def _numbers(self) -> Iterator[list[int]]:
        """Yield numbers of all that is not the vector, page by page."""
        table, cursor = self.table, None
        while True:
            found = self._page(table, cursor, ROWS_A_TRANSACTION, list(table.others))
            yield [row_number(as_json(row[1:])) for row in found]
            if len(found) < ROWS_A_TRANSACTION:
                return
            cursor = found[-1][0]

    def migration(self, tag: str, dim: int) -> NewVectors:
        return SecondTable(self, tag, dim)

    def read_field(self, ids: Sequence[StoreId], field: str | None) -> Sequence[str | None]:
        """Return texts of a column of the vec0 table, or, as `table.column`, of another table."""
        if field is None:
            raise StoreUnsupported(
                "The store was registered without `text_field`, so there are no texts. Register "
                "it again with the field that holds the text.",
                field="text_field",
            )
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
        refuse_new_side(side)
        table = self.table
        if k > MAX_RESULTS:
            raise StoreUnsupported(
                f"`k` is {k}, and sqlite-vec returns at most {MAX_RESULTS} rows. Ask for fewer.",
                field="k",
            )
        others = list(table.others) if payload else []
        names = [table.key, "distance", *[table.vector] * vectors, *others]
        condition, values = read_filter(filter, table.filtered)
        statement = (
            f"SELECT {', '.join(map(quoted, names))} FROM {quoted(table.name)} "
            f"WHERE {quoted(table.vector)} MATCH ? AND k = ?{condition} ORDER BY distance"
        )
        hits = []
        with self.session() as database:
            for query in np.ascontiguousarray(queries, "<f4"):
                found = database.execute(statement, (query.tobytes(), k, *values)).fetchall()
                distances = np.asarray([row[1] for row in found], np.float64)
                scores = -distances if table.distance == "l2" else 1 - distances
                blobs = b"".join(row[2] for row in found) if vectors else b""
                payloads = [dict(zip(others, row[2 + vectors :], strict=True)) for row in found]
                hits.append(
                    Hits(
                        [row[0] for row in found],
                        scores.tolist(),
                        np.frombuffer(blobs, "<f4").reshape(-1, table.dim) if vectors else None,
                        [payload_of(each) for each in payloads] if payload else None,
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
        found = self._store.find_table(self._name)
        if found is None or found.dim != self._dim:
            raise StoreChanged(
                f"The table `{self._name}` of new vectors is missing, or has other vectors. "
                "Abandon the migration, and plan a new one."
            )
        return found

    def prepare(self) -> None:
        if self._store.find_table(self._name) is None:
            with self._store.writing() as database:
                database.execute(self._store.table.statement(self._name, self._dim))

    def write(
        self, ids: Sequence[StoreId], vectors: StoreVectors, *, replace: bool = False
    ) -> None:
        old, new = self._store.table, self._new
        names = [old.key, *old.others]
        copied = [quoted(old.key), *(how.format(quoted(each)) for each, how in old.others.items())]
        insert = (
            f"INSERT INTO {quoted(new.name)} ({', '.join(map(quoted, (*names, new.vector)))}) "
            f"SELECT {', '.join(copied)}, ? FROM {quoted(old.name)} WHERE {quoted(old.key)} = ?"
        )
        numbers = np.ascontiguousarray(vectors, "<f4")
        for start in range(0, len(ids), ROWS_A_TRANSACTION):
            part = range(start, min(start + ROWS_A_TRANSACTION, len(ids)))
            with self._store.writing() as database:
                self._delete(database, [ids[at] for at in part])
                database.executemany(insert, [(numbers[at].tobytes(), ids[at]) for at in part])

    def _delete(self, database: Any, ids: Sequence[StoreId]) -> None:
        statement = f"DELETE FROM {quoted(self._name)} WHERE {quoted(self._store.table.key)} = ?"
        database.executemany(statement, [(id,) for id in ids])

    def read(self, ids: Sequence[StoreId]) -> Page:
        return self._store.fetch_from(self._new, ids)

    def count(self) -> int:
        found = self._store.find_table(self._name)
        return 0 if found is None else self._store.count_rows(found)

    def build_index(self) -> None:
        """Delete rows that the application deleted meanwhile; vec0 tables have no other index."""
        gone = (
            f"SELECT key FROM ({self._new.keys}) EXCEPT SELECT key FROM ({self._store.table.keys})"
        )
        with self._store.writing() as database:
            self._delete(database, [id for (id,) in database.execute(gone).fetchall()])

    def finish(self) -> None:
        """Do nothing: the table is the application's."""

    def abandon(self) -> None:
        with self._store.writing() as database:
            database.execute(f"DROP TABLE IF EXISTS {quoted(self._name)}")


def read_definition(name: str, text: str, location: StoreLocation) -> VecTable:
    """Read the arguments of a vec0 table."""
    bare = re.sub(r"--[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)
    arguments = [each.strip() for each in re.split(r",(?![^(]*\))", bare)]
    key, text_key = "rowid", False
    vectors: dict[str, tuple[int, re.Match[str]]] = {}
    others: dict[str, str] = {}
    filtered = set()
    for index, argument in enumerate(arguments):
        if found := VECTOR.fullmatch(argument):
            vectors[found[1]] = index, found
            others[found[1]] = COPIED.get(found[2].lower(), "{}")
        elif found := re.fullmatch(r"(\w+)\s+(\w+)\s+primary\s+key", argument, re.I):
            key, text_key = found[1], found[2].lower() == "text"
        elif found := re.fullmatch(r"\+\s*(\w+)\s+\w+", argument):
            others[found[1]] = "{}"
        elif found := re.fullmatch(r"(\w+)\s+(\w+)(\s+partition\s+key)?", argument, re.I):
            others[found[1]] = "{}"
            filtered.add(found[1])
    usable = [each for each in vectors if vectors[each][1][2].lower() in ("float", "f32")]
    vector = location.vector_field or (usable[0] if len(usable) == 1 else None)
    if vector is None or vector not in usable:
        raise StoreUnsupported(
            f"Name a column of vectors of `{name}` in `vector_field`. Those of type `float`, which "
            f"can be translated, are: {', '.join(usable) or 'none'}.",
            field="vector_field",
        )
    index, found = vectors[vector]
    del others[vector]
    table = VecTable(
        *(name, arguments, index, key, text_key, vector, int(found[3]), found[4]),
        *(others, frozenset(filtered)),
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


def read_filter(filter: Any, columns: frozenset[str]) -> tuple[str, list[Any]]:
    """Return conditions in SQL and their values, of `{"year": {">": 2000}, "topic": "art"}`."""
    if filter is not None and not isinstance(filter, dict):
        raise InvalidFilter("A filter of sqlite-vec is an object of columns.", field="filter")
    text, values = "", []
    for name, wanted in (filter or {}).items():
        for sign, value in (wanted if isinstance(wanted, dict) else {"=": wanted}).items():
            if name not in columns or sign not in COMPARISONS:
                raise InvalidFilter(
                    f"`filter` has the comparison `{name} {sign}`. A search can compare the "
                    f"columns {', '.join(sorted(columns)) or '(none)'} by one of "
                    f"{' '.join(COMPARISONS)}.",
                    field="filter",
                )
            if not isinstance(value, str | int | float):
                raise InvalidFilter(
                    f"`filter` compares `{name}` with neither a text nor a number.", field="filter"
                )
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                raise InvalidFilter(
                    f"`filter` compares `{name}` with a number of more than 64 bits. "
                    "Send one from -2^63 to 2^63 - 1.",
                    field="filter",
                )
            text += f" AND {quoted(name)} {sign} ?"
            values.append(value)
    return text, values


def quoted(name: str | None) -> str:
    """Return a name in SQL."""
    return '"' + str(name).replace('"', '""') + '"'


def unpack(blob: bytes, table: VecTable) -> StoreVectors:
    """Return a vector. Raises StoreChanged if the table has others now."""
    if len(blob) != 4 * table.dim:
        raise StoreChanged("Somebody changed the table while a page was read. Repeat the call.")
    return np.frombuffer(blob, "<f4")


def payload_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that JSON can hold: all but bytes."""
    return {name: each for name, each in row.items() if not isinstance(each, bytes)}


def _translate(error: Exception) -> AnchorageError | None:
    """Return the error of this project that one of SQLite stands for."""
    text = str(error)
    if not isinstance(error, SQLITE.Error):
        return None
    if "locked" in text or "busy" in text:
        return StoreUnavailable(
            f"{STORE} waited {BUSY_S:g} s for another client's lock on the file. Try again; in WAL "
            "mode, only writers wait for each other."
        )
    if found := re.search(r"decode to UTF-8 column '(\w*)'", text):
        return StoreUnsupported(
            f"The column `{found[1]}` of {STORE[4:]} has text that is not UTF-8. Write the row "
            "again with UTF-8, or as bytes into a column of type `blob`."
        )
    if "no such table" in text or "mismatch" in text:
        return StoreChanged(f"Somebody changed the tables of {STORE[4:]}: {text}. Look at them.")
    return fault_of(STORE, text)
