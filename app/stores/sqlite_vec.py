"""sqlite-vec as a Store: the new vectors are in a second vec0 table, and a cutover renames both.

SQLite runs no triggers for virtual tables, so writes are found by comparing both tables. A table
of digests tells whether a client wrote a row since the other one was made of it. Each call opens
the file anew, and each transaction is short: SQLite lets one connection write at a time.
"""

from __future__ import annotations

import json
import re
import time
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
    Hits,
    Metric,
    Page,
    Side,
    StoreFacts,
    StoreId,
    StoreLocation,
    StoreNote,
    StoreVectors,
)
from app.stores.common import as_json, fault_of, row_number, store_faults
from app.stores.second_collection import PairedStore, Sides, StoredRow, random_runs

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

#: the text of a vec0 table's definition, and one of its columns of vectors
DEFINITION = re.compile(r"using\s+vec0\s*\((.*)\)\s*$", re.IGNORECASE | re.DOTALL)
VECTOR = re.compile(r"(\w+)\s+(float|f32|int8|i8|bit)\s*\[\s*(\d+)\s*\](.*)", re.I | re.S)

#: how a vector of each type is written
WRITTEN = {"int8": "vec_int8(?)", "i8": "vec_int8(?)", "bit": "vec_bit(?)"}

VEC_NOTES = (
    StoreNote(
        "changes-by-digest",
        "SQLite runs no triggers for vec0 tables. Writes are found by digests of rows and "
        "vectors, with `sync` and `verify` and at a cutover; a row that a client deletes after a "
        "cutover comes back with a rollback.",
    ),
    StoreNote(
        "space-after-finish",
        "The file keeps the space of the old vectors for later rows. Run `VACUUM` to shrink it.",
    ),
)

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
    others     all other columns, each with how it is written: `?`, or a function of it
    filtered   columns that a filter may name
    hidden     what follows its name in the names of its hidden tables
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
    hidden: Sequence[str]

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


@dataclass(frozen=True, eq=False)
class VecPlace:
    """One side. pairs: the table of digests, if there is one; half: this side's place in it."""

    table: VecTable
    pairs: str | None = None
    half: int = 0


@dataclass(frozen=True, eq=False)
class VecContent:
    """The columns of a row that are neither its id nor its vector."""

    values: Mapping[str, Any]

    @property
    def payload(self) -> dict[str, Any]:
        """The columns that JSON can hold: all but bytes."""
        return {name: each for name, each in self.values.items() if not isinstance(each, bytes)}


class SqliteVecStore(PairedStore):
    """A vec0 table of a SQLite file."""

    capabilities = Capabilities(atomic_cutover=True, filters=True)

    def __init__(self, location: StoreLocation) -> None:
        super().__init__()
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

    # --- verbs of the second collection -------------------------------------------------------

    def find_sides(self, tag: str | None = None) -> Sides:
        name = self.location.collection
        with self.session() as database:
            found = database.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'")
            texts = {each: match[1] for each, sql in found if (match := DEFINITION.search(sql))}
        if name not in texts:
            known = ", ".join(f"`{each}`" for each in sorted(texts)) or "none"
            raise StoreChanged(f"The file has no vec0 table `{name}`. Its vec0 tables: {known}.")
        here = read_definition(name, texts[name], self.location)
        pattern = re.compile(rf"{re.escape(name)}_anchorage_({tag or '[0-9a-f]{8}'})(_old)?")
        for each in sorted(texts):
            if match := pattern.fullmatch(each):
                there = read_definition(each, texts[each], self.location)
                pairs = f"{name}_anchorage_{match[1]}_digests"
                old, new = (there, here) if match[2] else (here, there)
                sides = VecPlace(old, pairs, 0), VecPlace(new, pairs, 1)
                return Sides("cut" if match[2] else "open", match[1], *sides)
        return Sides("none", None, VecPlace(here))

    def create(self, sides: Sides, tag: str, dim: int) -> None:
        table: VecTable = sides.old.table
        copy = f"{table.name}_anchorage_{tag}"
        with self.writing() as database:
            database.execute(table.statement(copy, dim))
            database.execute(
                f"CREATE TABLE {quoted(copy + '_digests')} "
                "(id PRIMARY KEY, old INTEGER, new INTEGER) WITHOUT ROWID"
            )

    def read_page(
        self, place: VecPlace, cursor: Cursor | None, limit: int, *, vectors: bool, content: bool
    ) -> tuple[list[StoredRow], Cursor | None]:
        after = () if cursor is None else (cursor,)
        keys = f"{place.table.keys}{' WHERE rowid > ?' * len(after)} ORDER BY rowid LIMIT ?"
        found = self._read(place, keys, (*after, limit), vectors=vectors, content=content)
        places, rows = [each for each, _ in found], [row for _, row in found]
        return rows, places[-1] if len(rows) == limit else None

    def read_rows(
        self, place: VecPlace, ids: Sequence[StoreId], *, vectors: bool, content: bool
    ) -> dict[StoreId, StoredRow]:
        known = json.dumps([each for each in ids if place.table.has_id(each)])
        keys = "SELECT 0 AS place, value AS key FROM json_each(?)"
        found = self._read(place, keys, (known,), vectors=vectors, content=content)
        return {row.id: row for _, row in found}

    def _read(
        self, place: VecPlace, keys: str, values: Sequence[Any], *, vectors: bool, content: bool
    ) -> list[tuple[int, StoredRow]]:
        """Return the rows whose keys a statement finds, in the order of their places."""
        table, pairs = place.table, place.pairs if content else None
        names = [table.key, *[table.vector] * (vectors or content)] + list(table.others) * content
        columns = ", ".join(f"v.{quoted(each)}" for each in names)
        columns += ", p.old, p.new" if pairs else ""
        join = f"CROSS JOIN {quoted(table.name)} AS v ON v.{quoted(table.key)} = r.key"
        # without `+`, SQLite would convert each id of the digests, and use no index
        join += f" LEFT JOIN {quoted(pairs)} AS p ON p.id = +r.key" if pairs else ""
        statement = f"SELECT r.place, {columns} FROM ({keys}) AS r {join} ORDER BY r.place"
        with self.session() as database:
            found = database.execute(statement, values).fetchall()
        if any(len(each[2]) != 4 * table.dim for each in found if vectors):
            raise StoreChanged("The tables were switched while a page was read. Repeat the call.")
        return [(each[0], _row(place, each[1:], vectors, content)) for each in found]

    def count_rows(self, place: VecPlace) -> int:
        with self.session() as database:
            found = database.execute(f"SELECT count(*) FROM ({place.table.keys})").fetchone()
        return int(found[0])

    def dim_of(self, place: VecPlace) -> int:
        return place.table.dim

    def write_rows(
        self, place: VecPlace, rows: Sequence[StoredRow], vectors: StoreVectors | None
    ) -> None:
        assert vectors is not None  # each row of a vec0 table has a vector
        table = place.table
        names = ", ".join(map(quoted, (table.key, table.vector, *table.others)))
        values = ", ".join(("?", "?", *table.others.values()))
        numbers = np.ascontiguousarray(vectors, "<f4")
        for start in range(0, len(rows), ROWS_A_TRANSACTION):
            part = range(start, min(start + ROWS_A_TRANSACTION, len(rows)))
            written, pairs = [], []
            for row, blob in ((rows[at], numbers[at].tobytes()) for at in part):
                written.append((row.id, blob, *row.content.values.values()))
                own, other = digest_of(row.id, row.content, blob), row.digest
                pairs.append((row.id, other, own) if place.half else (row.id, own, other))
            with self.writing() as database:
                self._delete(database, place, [row[0] for row in written])
                insert = f"INSERT INTO {quoted(table.name)} ({names}) VALUES ({values})"
                database.executemany(insert, written)
                database.executemany(f"INSERT INTO {quoted(place.pairs)} VALUES (?, ?, ?)", pairs)

    def delete_rows(self, place: VecPlace, ids: Sequence[StoreId]) -> None:
        for start in range(0, len(ids), ROWS_A_TRANSACTION):
            with self.writing() as database:
                self._delete(database, place, ids[start : start + ROWS_A_TRANSACTION])

    def _delete(self, database: Any, place: VecPlace, ids: Sequence[StoreId]) -> None:
        for name, key in ((place.table.name, place.table.key), (place.pairs, "id")):
            statement = f"DELETE FROM {quoted(name)} WHERE {quoted(key)} = ?"
            database.executemany(statement, [(id,) for id in ids])

    def swap(self, sides: Sides, visible: Side) -> float:
        """Rename both tables in one transaction; triggers and views keep the name they use."""
        name, copy = self.location.collection, f"{self.location.collection}_anchorage_{sides.tag}"
        hidden = f"{copy}_old" if visible == "new" else copy
        begun = time.monotonic()
        with self.writing() as database:
            database.execute("PRAGMA legacy_alter_table = 1")  # does not change triggers and views
            _rename(database, sides.visible.table, hidden)
            _rename(database, sides.place(visible).table, name)
        return time.monotonic() - begun

    def drop(self, sides: Sides, side: Side) -> None:
        place = sides.place(side)
        with self.writing() as database:
            database.execute(f"DROP TABLE {quoted(place.table.name)}")
            database.execute(f"DROP TABLE IF EXISTS {quoted(place.pairs)}")

    # --- reading ------------------------------------------------------------------------------

    def facts(self) -> StoreFacts:
        place: VecPlace = self.find_sides().visible
        rows, table = self.count_rows(place), place.table
        with self.session() as database:
            is_wal = database.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        return StoreFacts(
            rows=rows,
            dim=table.dim,
            metric=DISTANCES[table.distance],
            vector_bytes=4 * rows * table.dim,
            vector_field=table.vector,
            notes=VEC_NOTES if is_wal else (*VEC_NOTES, NO_WAL),
        )

    def sample(self, count: int, seed: int = 0) -> Page:
        place: VecPlace = self.find_sides().old
        keys = f"{place.table.keys} ORDER BY rowid LIMIT ? OFFSET ?"
        rows: list[StoredRow] = []
        for start, length in random_runs(self.count_rows(place), count, seed):
            found = self._read(place, keys, (length, start), vectors=True, content=False)
            rows += [row for _, row in found]
        return self._page(place, rows, None)

    def content_number(self, row: StoredRow) -> int:
        return row_number(as_json(row.id), as_json(row.content.values))

    def read_field(self, ids: Sequence[StoreId], field: str | None) -> Sequence[str | None]:
        """Return texts of a column of the vec0 table, or, as `table.column`, of another table."""
        if field is None or "." not in field:
            return super().read_field(ids, field)
        table: VecTable = self.find_sides().visible.table
        name, _, column = field.rpartition(".")
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
            known = [each for each in ids if table.has_id(each)]
            found = dict(
                database.execute(
                    f"SELECT r.value, t.{quoted(column)} FROM json_each(?) AS r "
                    f"JOIN {quoted(name)} AS t ON t.{quoted(key)} = r.value",
                    (json.dumps(known),),
                )
            )
        return [text if isinstance(text := found.get(id), str) else None for id in ids]

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
        place: VecPlace = self.find_sides().place(side)
        table = place.table
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
                        [VecContent(each).payload for each in payloads] if payload else None,
                    )
                )
        return hits


def read_definition(name: str, text: str, location: StoreLocation) -> VecTable:
    """Read the arguments of a vec0 table."""
    bare = re.sub(r"--[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)
    arguments = [each.strip() for each in re.split(r",(?![^(]*\))", bare)]
    key, text_key = "rowid", False
    vectors: dict[str, tuple[int, re.Match[str]]] = {}
    others: dict[str, str] = {}
    filtered = set()
    hidden, metadata = {"_info", "_chunks", "_rowids"}, 0
    for index, argument in enumerate(arguments):
        if found := VECTOR.fullmatch(argument):
            vectors[found[1]] = index, found
            others[found[1]] = WRITTEN.get(found[2].lower(), "?")
            hidden.add(f"_vector_chunks{len(vectors) - 1:02}")
        elif found := re.fullmatch(r"(\w+)\s+(\w+)\s+primary\s+key", argument, re.I):
            key, text_key = found[1], found[2].lower() == "text"
        elif found := re.fullmatch(r"\+\s*(\w+)\s+\w+", argument):
            others[found[1]] = "?"
            hidden.add("_auxiliary")
        elif found := re.fullmatch(r"(\w+)\s+(\w+)(\s+partition\s+key)?", argument, re.I):
            others[found[1]] = "?"
            filtered.add(found[1])
            if not found[3]:
                hidden.add(f"_metadatachunks{metadata:02}")
                if found[2].lower() == "text":
                    hidden.add(f"_metadatatext{metadata:02}")
                metadata += 1
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
        *(others, frozenset(filtered), sorted(hidden)),
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


def digest_of(id: StoreId, content: VecContent, vector: bytes) -> int:
    """Return a number below 2^63 of a row with its vector."""
    return row_number(as_json(id), as_json(content.values), vector) >> 65


def _row(place: VecPlace, found: Sequence[Any], vectors: bool, content: bool) -> StoredRow:
    """Return a row of an id, a vector, the other columns, and both digests."""
    id, vector = found[0], np.frombuffer(found[1], "<f4") if vectors else None
    if not content:
        return StoredRow(id, vector, None, 0, 0)
    whole = VecContent(dict(zip(place.table.others, found[2:], strict=False)))
    digest, origin = digest_of(id, whole, found[1]), None
    if place.pairs is not None and found[place.half - 2] == digest:
        origin = found[-1 - place.half]
    return StoredRow(id, vector, whole, digest, origin)


def _rename(database: Any, table: VecTable, new: str) -> None:
    """Rename a vec0 table and, before sqlite-vec 0.1.10, the hidden tables that belong to it."""
    database.execute(f"ALTER TABLE {quoted(table.name)} RENAME TO {quoted(new)}")
    found = database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    for each in table.hidden:
        if (table.name + each,) in found:
            old, renamed = quoted(table.name + each), quoted(new + each)
            database.execute(f"ALTER TABLE {old} RENAME TO {renamed}")


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
