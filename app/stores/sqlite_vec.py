"""sqlite-vec as a Store: a migration fills a second vec0 table next to the first.

Each call opens the file anew, in one transaction.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import sqlite_vec

from app.errors import StoreChanged, StoreUnavailable, StoreUnsupported
from app.stores.common import as_json, page_of, random_runs, row_number, rows_checksum, store_faults
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
from app.stores.staged import StagedVectors

STORE = "The sqlite-vec store"

#: rows that are read or written at once, and most results of one search of a vec0 table
ROWS_AT_ONCE, MAX_RESULTS = 500, 4096

#: distances of vec0
DISTANCES: dict[str, Metric] = {"cosine": "cosine", "l2": "euclidean"}

#: the text of a vec0 table's definition, and one of its columns of vectors
DEFINITION = re.compile(r"using\s+vec0\s*\((.*)\)\s*$", re.IGNORECASE | re.DOTALL)
VECTOR = re.compile(r"(\w+)\s+(float|f32|int8|i8|bit)\s*\[\s*(\d+)\s*\]([^,]*)", re.IGNORECASE)

#: the rows of a page after the place of a cursor, and the least such place
NEXT, FIRST = "WHERE i.rowid > ? ORDER BY i.rowid LIMIT ?", -(2**63)

#: Python's own module, where it can load extensions; else the one that the extra installs
SQLITE: Any = import_module(
    "sqlite3" if hasattr(sqlite3.Connection, "enable_load_extension") else "pysqlite3"
)


@dataclass(frozen=True, eq=False)
class VecTable:
    """A vec0 table as its definition says.

    arguments  columns and options as they were written, with the dimensions at `place`
    key        the column of ids; `rowid` if none is named
    others     all columns but the key and the vectors
    """

    name: str
    arguments: str
    place: tuple[int, int]
    key: str
    text_key: bool
    vector: str
    dim: int
    distance: str
    others: Sequence[str]

    @property
    def ids(self) -> tuple[str, str]:
        """The hidden table of ids, which has ranges as vec0 itself has not, and its column."""
        return quoted(f"{self.name}_rowids"), "id" if self.text_key else "rowid"


class SqliteVecStore(Store):
    """A vec0 table of a SQLite file."""

    capabilities = Capabilities()

    def __init__(self, location: StoreLocation) -> None:
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
        return read_definition(name, definition[1], columns)

    def read(
        self, table: VecTable, columns: Sequence[str], rest: str, *values: Any
    ) -> list[tuple[Any, ...]]:
        """Return position, id and `columns` of rows of the table of ids `i`, as `rest` says."""
        hidden, key = table.ids
        names = "".join(f", v.{quoted(each)}" for each in columns)
        statement = (
            f"SELECT i.rowid, i.{key}{names} FROM {hidden} AS i CROSS JOIN {quoted(table.name)} "
            f"AS v ON v.{quoted(table.key)} = i.{key} {rest}"
        )
        with self.session() as database:
            return list(database.execute(statement, values))

    def read_ids(
        self, table: VecTable, ids: Sequence[StoreId], columns: Sequence[str]
    ) -> list[tuple[Any, ...]]:
        chosen = f"WHERE i.{table.ids[1]} IN (SELECT value FROM json_each(?))"
        return self.read(table, columns, chosen, json.dumps(list(ids)))

    # --- reading ------------------------------------------------------------------------------

    def facts(self) -> StoreFacts:
        table = self.table
        rows = self._count(table)
        return StoreFacts(
            rows=rows,
            dim=table.dim,
            metric=DISTANCES[table.distance],
            vector_bytes=4 * rows * table.dim,
            vector_field=table.vector,
        )

    def _count(self, table: VecTable) -> int:
        with self.session() as database:
            return int(database.execute(f"SELECT count(*) FROM {table.ids[0]}").fetchone()[0])

    def scroll(self, cursor: Cursor | None, limit: int, side: Side = "old") -> Page:
        table = self.table
        found = self.read(table, [table.vector], NEXT, FIRST if cursor is None else cursor, limit)
        vectors, after = vectors_of(found), found[-1][0] if len(found) == limit else None
        return page_of(list(vectors), vectors, table.dim, after)

    def sample(self, count: int, seed: int = 0) -> Page:
        table = self.table
        vectors: dict[StoreId, StoreVectors] = {}
        for start, length in random_runs(self._count(table), count, seed):
            rest = "ORDER BY i.rowid LIMIT ? OFFSET ?"
            vectors |= vectors_of(self.read(table, [table.vector], rest, length, start))
        return page_of(list(vectors), vectors, table.dim)

    def fetch(self, ids: Sequence[StoreId], side: Side = "old") -> Page:
        table = self.table
        return page_of(ids, vectors_of(self.read_ids(table, ids, [table.vector])), table.dim)

    def checksum(self, hear: HearRows = lambda rows: None) -> RowsChecksum:
        return rows_checksum(self._numbers(), hear)

    def _numbers(self) -> Iterator[list[int]]:
        """Yield numbers of all that is not the vector, page by page."""
        table, cursor = self.table, FIRST
        while found := self.read(table, table.others, NEXT, cursor, ROWS_AT_ONCE):
            yield [row_number(as_json(row[1:])) for row in found]
            cursor = found[-1][0]

    def migration(self, tag: str, dim: int) -> NewVectors:
        return SecondTable(self, tag, dim)

    def read_field(self, ids: Sequence[StoreId], field: str) -> Sequence[str | None]:
        """Return texts of a column, or, as `table.column`, of the table with these rowids."""
        table, (other, _, column) = self.table, field.rpartition(".")
        if other:
            # SQLite takes an unknown name in quotes for a text
            self._require_column(column, other)
            statement = (
                f"SELECT rowid, {quoted(column)} FROM {quoted(other)} "
                "WHERE rowid IN (SELECT value FROM json_each(?))"
            )
            with self.session() as database:
                found = dict(database.execute(statement, (json.dumps(list(ids)),)))
        else:
            self._require_column(column, table.name)
            found = {row[1]: row[2] for row in self.read_ids(table, ids, [column])}
        return [text if isinstance(text := found.get(id), str) else None for id in ids]

    def _require_column(self, column: str, table: str) -> None:
        with self.session() as database:
            info = database.execute("SELECT name FROM pragma_table_info(?)", (table,))
            if (column,) in list(info):
                return
        raise StoreUnsupported(
            f"The file has no column `{column}` in a table `{table}`. Name the text as `column` "
            "of the vec0 table, or as `table.column`.",
            field="text_field",
        )

    def find_nearest(self, wanted: Search) -> Sequence[Hits]:
        table = self.table
        if wanted.k > MAX_RESULTS:
            raise StoreUnsupported(
                f"`k` is {wanted.k}, and sqlite-vec returns at most {MAX_RESULTS} rows. Ask for "
                "fewer.",
                field="k",
            )
        others = table.others if wanted.payload else []
        names = ", ".join(map(quoted, [table.key, "distance", table.vector, *others]))
        statement = (
            f"SELECT {names} FROM {quoted(table.name)} WHERE {quoted(table.vector)} MATCH ? "
            "AND k = ? ORDER BY distance"
        )
        hits = []
        for query in np.ascontiguousarray(wanted.queries, "<f4"):
            with self.session() as database:
                found = database.execute(statement, (query.tobytes(), wanted.k)).fetchall()
            ids, base = [row[0] for row in found], 0 if table.distance == "l2" else 1
            payloads = [
                # all columns that JSON can hold
                {name: each for name, each in pairs if not isinstance(each, bytes)}
                for pairs in (zip(others, row[3:], strict=True) for row in found)
            ]
            hits.append(
                Hits(
                    ids,
                    [base - float(row[1]) for row in found],
                    page_of(
                        ids, vectors_of(row[1::-1] + row[2:3] for row in found), table.dim
                    ).vectors
                    if wanted.vectors
                    else None,
                    payloads if wanted.payload else None,
                )
            )
        return hits


class SecondTable(StagedVectors):
    """The new vectors of one migration, which become a vec0 table with all other columns."""

    def __init__(self, store: SqliteVecStore, tag: str, dim: int) -> None:
        super().__init__(STORE, store.path.with_name(f"{store.path.name}.anchorage-{tag}"), dim)
        self._source = store
        self._name = quoted(f"{store.location.collection}_anchorage_{tag}")

    def ids(self) -> Sequence[StoreId]:
        hidden, key = self._source.table.ids
        with self._source.session() as database:
            return [id for (id,) in database.execute(f"SELECT {key} FROM {hidden} ORDER BY rowid")]

    def publish(self, ids: Sequence[StoreId]) -> None:
        old = self._source.table
        start, end = old.place
        arguments = f"{old.arguments[:start]}{self._dim}{old.arguments[end:]}"
        names = ", ".join(map(quoted, [old.key, *old.others]))
        insert = (
            f"INSERT INTO {self._name} ({names}, {quoted(old.vector)}) "
            f"SELECT {names}, ? FROM {quoted(old.name)} WHERE {quoted(old.key)} = ?"
        )
        with self._source.session() as database:
            database.execute(f"DROP TABLE IF EXISTS {self._name}")
            database.execute(f"CREATE VIRTUAL TABLE {self._name} USING vec0({arguments})")
        for first in range(0, len(ids), ROWS_AT_ONCE):
            new = self.read(ids[first : first + ROWS_AT_ONCE])
            blobs = (each.tobytes() for each in new.vectors)
            with self._source.session() as database:  # not longer: readers wait for its end
                database.executemany(insert, zip(blobs, new.ids, strict=True))

    def withdraw(self) -> None:
        with self._source.session() as database:
            database.execute(f"DROP TABLE IF EXISTS {self._name}")


def read_definition(name: str, text: str, columns: Sequence[str]) -> VecTable:
    """Read the arguments of a vec0 table, whose first column is the key."""
    key, *rest = columns
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
    return VecTable(
        name=name,
        arguments=text,
        place=found[0].span(3),
        key=key,
        text_key=re.search(rf"\b{key}\s+text\s+primary\s+key", text, re.IGNORECASE) is not None,
        vector=found[0][1],
        dim=int(found[0][3]),
        distance=distance,
        others=[each for each in rest if each != found[0][1]],
    )


def vectors_of(rows: Iterable[tuple[Any, ...]]) -> dict[StoreId, StoreVectors]:
    """Return the vectors of rows of `read`, by their ids."""
    return {id: np.frombuffer(blob, "<f4") for _, id, blob in rows}


def quoted(name: str) -> str:
    """Return a name in SQL."""
    return '"' + name.replace('"', '""') + '"'
