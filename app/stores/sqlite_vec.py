"""sqlite-vec as a Store: a migration fills a second vec0 table next to the first.

Each call opens the file anew, in one transaction.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import sqlite_vec

from app.errors import StoreChanged, StoreUnavailable, StoreUnsupported
from app.stores import port as base
from app.stores.common import as_json, random_runs, row_number, rows_checksum, store_faults
from app.stores.port import Cursor, Hits, Page, Search, Side, StoreId, StoreVectors
from app.stores.staged import StagedVectors

STORE = "The sqlite-vec store"

#: rows that are read or written at once, and most results of one search of a vec0 table
ROWS_AT_ONCE, MAX_RESULTS = 500, 4096

#: distances of vec0
DISTANCES: dict[str, base.Metric] = {"cosine": "cosine", "l2": "euclidean"}

#: the text of a vec0 table's definition, and one of its columns of vectors
DEFINITION = re.compile(r"using\s+vec0\s*\((.*)\)\s*$", re.IGNORECASE | re.DOTALL)
VECTOR = re.compile(r"(\w+)\s+(float|f32|int8|i8|bit)\s*\[\s*(\d+)\s*\]([^,]*)", re.IGNORECASE)

#: the columns of a table, the key of a vec0 table first
COLUMNS = "SELECT name FROM pragma_table_info(?)"

#: the rows of a page after the place of a cursor, and the least such place
NEXT, FIRST = "WHERE i.rowid > ? ORDER BY i.rowid LIMIT ?", -(2**63)

#: Python's own module, where it can load extensions; else the one that the extra installs
SQLITE: Any = import_module(
    "sqlite3" if hasattr(sqlite3.Connection, "enable_load_extension") else "pysqlite3"
)


@dataclass(frozen=True, eq=False)
class VecTable:
    """A vec0 table as its definition says, in one transaction.

    arguments  columns and options as they were written, with the dimensions at `place`
    key        the column of ids; `rowid` if none is named
    others     all columns but the key and the vectors
    hidden     the table of ids in SQL, which has ranges as vec0 itself has not
    id         the column of ids there
    """

    database: Any
    name: str
    arguments: str
    place: tuple[int, int]
    key: str
    vector: str
    dim: int
    distance: str
    others: Sequence[str]
    hidden: str
    id: str

    def count(self) -> int:
        return int(self.database.execute(f"SELECT count(*) FROM {self.hidden}").fetchone()[0])

    def read(self, columns: Sequence[str], rest: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return position, id and `columns` of rows of the table of ids `i`, as `rest` says."""
        names = "".join(f", v.{quoted(each)}" for each in columns)
        statement = (
            f"SELECT i.rowid, i.{self.id}{names} FROM {self.hidden} AS i "
            f"CROSS JOIN {quoted(self.name)} AS v ON v.{quoted(self.key)} = i.{self.id} {rest}"
        )
        return list(self.database.execute(statement, values))

    def read_ids(self, ids: Sequence[StoreId], column: str) -> list[tuple[Any, ...]]:
        chosen = f"WHERE i.{self.id} IN (SELECT value FROM json_each(?))"
        return self.read([column], chosen, json.dumps(list(ids)))

    def page(self, rows: Sequence[tuple[Any, ...]], cursor: Cursor | None = None) -> Page:
        """Return the ids and vectors of rows of `read`."""
        return Page([row[1] for row in rows], stacked([row[2] for row in rows], self.dim), cursor)


class SqliteVecStore(base.Store):
    """A vec0 table of a SQLite file."""

    capabilities = base.Capabilities()

    def __init__(self, location: base.StoreLocation) -> None:
        self.location = location
        self.path = Path(location.url.removeprefix("file://"))

    def close(self) -> None:
        """Do nothing: no connection outlives a call."""

    @contextmanager
    def session(self) -> Iterator[Any]:
        """Yield a connection in one transaction, which is committed at the end."""
        if not self.path.is_file():
            raise StoreUnavailable("The address names no file. Ask the operator to correct it.")
        with store_faults(STORE, (SQLITE.Error,)):
            url = f"{self.path.resolve().as_uri()}?mode=rw"  # does not create it
            with closing(SQLITE.connect(url, uri=True, isolation_level=None)) as database:
                database.enable_load_extension(True)
                sqlite_vec.load(database)
                database.enable_load_extension(False)
                database.execute("BEGIN")
                yield database
                database.execute("COMMIT")

    @contextmanager
    def open(self) -> Iterator[VecTable]:
        """Yield the table as it is now. Raises StoreChanged, StoreUnsupported."""
        with self.session() as database:
            yield read_definition(database, self.location.collection)

    # --- reading ------------------------------------------------------------------------------

    def facts(self) -> base.StoreFacts:
        with self.open() as table:
            rows = table.count()
        return base.StoreFacts(
            rows=rows, dim=table.dim, metric=DISTANCES[table.distance], vector_field=table.vector
        )

    def scroll(self, cursor: Cursor | None, limit: int, side: Side = "old") -> Page:
        with self.open() as table:
            found = table.read([table.vector], NEXT, FIRST if cursor is None else cursor, limit)
        return table.page(found, found[-1][0] if len(found) == limit else None)

    def sample(self, count: int, seed: int = 0) -> Page:
        found = []
        with self.open() as table:
            for start, length in random_runs(table.count(), count, seed):
                rest = "ORDER BY i.rowid LIMIT ? OFFSET ?"
                found += table.read([table.vector], rest, length, start)
        return table.page(found)

    def fetch(self, ids: Sequence[StoreId], side: Side = "old") -> Page:
        with self.open() as table:
            found = {row[1]: row for row in table.read_ids(ids, table.vector)}
        return table.page([found[id] for id in ids if id in found])

    def numbers(self) -> Iterator[list[int]]:
        """Yield numbers of all that is not the vector, page by page."""
        cursor = FIRST
        while True:
            with self.open() as table:
                found = table.read(table.others, NEXT, cursor, ROWS_AT_ONCE)
            if not found:
                return
            yield [row_number(as_json(row[1:])) for row in found]
            cursor = found[-1][0]

    def migration(self, tag: str, dim: int) -> base.NewVectors:
        return SecondTable(self, tag, dim)

    def read_field(self, ids: Sequence[StoreId], field: str) -> Sequence[str | None]:
        """Return texts of a column, or, as `table.column`, of the table with these rowids."""
        other, _, column = field.rpartition(".")
        with self.open() as table:
            info = table.database.execute(COLUMNS, (other or table.name,))
            if (column,) not in list(info):  # SQLite takes an unknown name in quotes for a text
                raise StoreUnsupported(
                    f"The file has no column `{column}` in a table `{other or table.name}`. Name "
                    "a column of the vec0 table, or `table.column`.",
                    field="text_field",
                )
            if other:
                statement = (
                    f"SELECT rowid, {quoted(column)} FROM {quoted(other)} "
                    "WHERE rowid IN (SELECT value FROM json_each(?))"
                )
                found = dict(table.database.execute(statement, (json.dumps(list(ids)),)))
            else:
                found = {row[1]: row[2] for row in table.read_ids(ids, column)}
        return [text if isinstance(text := found.get(id), str) else None for id in ids]

    def find_nearest(self, wanted: Search) -> Sequence[Hits]:
        if wanted.k > MAX_RESULTS:
            raise StoreUnsupported(
                f"`k` is {wanted.k}, and sqlite-vec returns at most {MAX_RESULTS} rows. Ask for "
                "fewer.",
                field="k",
            )
        queries = np.ascontiguousarray(wanted.queries, "<f4")
        return [self._find_nearest(query.tobytes(), wanted) for query in queries]

    def _find_nearest(self, query: bytes, wanted: Search) -> Hits:
        with self.open() as table:
            others = table.others if wanted.payload else []
            names = ", ".join(map(quoted, [table.key, "distance", table.vector, *others]))
            statement = (
                f"SELECT {names} FROM {quoted(table.name)} WHERE {quoted(table.vector)} MATCH ? "
                "AND k = ? ORDER BY distance"
            )
            found = list(table.database.execute(statement, (query, wanted.k)))
        base = 0 if table.distance == "l2" else 1
        rows = [dict(zip(others, row[3:], strict=True)) for row in found]
        return Hits(
            [row[0] for row in found],
            [base - float(row[1]) for row in found],
            stacked([row[2] for row in found], table.dim) if wanted.vectors else None,
            # all columns that JSON can hold
            [
                {name: each for name, each in row.items() if not isinstance(each, bytes)}
                for row in rows
            ]
            if wanted.payload
            else None,
        )


class SecondTable(StagedVectors):
    """The new vectors of one migration, which become a vec0 table with all other columns."""

    def __init__(self, store: SqliteVecStore, tag: str, dim: int) -> None:
        super().__init__(STORE, store.path.with_name(f"{store.path.name}.anchorage-{tag}"), dim)
        self._source = store
        self._name = quoted(f"{store.location.collection}_anchorage_{tag}")

    def ids(self) -> Sequence[StoreId]:
        with self._source.open() as table:
            statement = f"SELECT {table.id} FROM {table.hidden} ORDER BY rowid"
            return [id for (id,) in table.database.execute(statement)]

    def checksum(self, hear: base.HearRows) -> base.RowsChecksum:
        return rows_checksum(self._source.numbers(), hear)

    def publish(self, ids: Sequence[StoreId]) -> None:
        with self._source.open() as old:
            old.database.execute(f"DROP TABLE IF EXISTS {self._name}")
            start, end = old.place
            arguments = f"{old.arguments[:start]}{self._dim}{old.arguments[end:]}"
            old.database.execute(f"CREATE VIRTUAL TABLE {self._name} USING vec0({arguments})")
        names = ", ".join(map(quoted, [old.key, *old.others]))
        insert = (
            f"INSERT INTO {self._name} ({names}, {quoted(old.vector)}) "
            f"SELECT {names}, ? FROM {quoted(old.name)} WHERE {quoted(old.key)} = ?"
        )
        for first in range(0, len(ids), ROWS_AT_ONCE):
            new = self.read(ids[first : first + ROWS_AT_ONCE])
            blobs = (each.tobytes() for each in new.vectors)
            with self._source.session() as database:  # not longer: readers wait for its end
                database.executemany(insert, zip(blobs, new.ids, strict=True))

    def withdraw(self) -> None:
        with self._source.session() as database:
            database.execute(f"DROP TABLE IF EXISTS {self._name}")


def read_definition(database: Any, name: str) -> VecTable:
    """Return a vec0 table. Raises StoreChanged, StoreUnsupported."""
    schema = database.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (name,))
    definition = DEFINITION.search(*schema.fetchone() or [""])
    if definition is None:
        raise StoreChanged(f"The file has no vec0 table `{name}`.")
    text, (key, *rest) = definition[1], [each for (each,) in database.execute(COLUMNS, (name,))]
    found = [each for each in VECTOR.finditer(text) if each[1] in rest]
    metric = re.search(r"distance_metric\s*=\s*(\w+)", found[0][4]) if found else None
    distance = metric[1].lower() if metric else "l2"
    if len(found) != 1 or found[0][2].lower() not in ("float", "f32") or distance not in DISTANCES:
        raise StoreUnsupported(
            f"The vec0 table `{name}` has several columns of vectors, none of type `float`, or "
            f"the distance `{distance}`. Anchorage moves tables with one column of floats and the "
            "distance `cosine` or `L2`: copy the vectors into such a table, and name that.",
            field="collection",
        )
    is_text = re.search(rf"\b{key}\s+text\s+primary\s+key", text, re.IGNORECASE)
    return VecTable(
        database,
        name,
        arguments=text,
        place=found[0].span(3),
        key=key,
        vector=found[0][1],
        dim=int(found[0][3]),
        distance=distance,
        others=[each for each in rest if each != found[0][1]],
        hidden=quoted(f"{name}_rowids"),
        id="id" if is_text else "rowid",
    )


def stacked(blobs: Sequence[bytes], dim: int) -> StoreVectors:
    return np.frombuffer(b"".join(blobs), "<f4").reshape(-1, dim).astype(np.float32)


def quoted(name: str) -> str:
    """Return a name in SQL."""
    return '"' + name.replace('"', '""') + '"'
