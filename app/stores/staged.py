"""New vectors of a store that one application has wait in a file until the run is complete."""

from __future__ import annotations

import json
import sqlite3
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from app.errors import StoreChanged
from app.stores.common import page_of, store_faults
from app.stores.port import NewVectors, Page, StoreId, StoreVectors


class StagedVectors(NewVectors):
    """New vectors in a SQLite file next to the store. A connector says how they are published.

    Ids are JSON there, because SQLite has no integers of 64 bits without a sign.

    store  the store's name in errors
    path   the file
    """

    def __init__(self, store: str, path: Path, dim: int) -> None:
        self._store, self._staged, self._dim = store, path, dim

    @abstractmethod
    def ids(self) -> Sequence[StoreId]:
        """Return the ids of all rows that the store has now."""

    @abstractmethod
    def publish(self, ids: Sequence[StoreId]) -> None:
        """Write the new vectors of these rows where the application opens them, also again."""

    @abstractmethod
    def withdraw(self) -> None:
        """Delete what `publish` wrote, if there is anything."""

    @contextmanager
    def _session(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection in one transaction, which is committed at the end."""
        if not self._staged.is_file():
            raise StoreChanged(f"{self._store} has no file `{self._staged.name}` of new vectors.")
        with (
            store_faults(self._store, (sqlite3.Error,)),
            closing(sqlite3.connect(self._staged, isolation_level=None)) as database,
        ):
            database.execute("BEGIN")
            yield database
            database.execute("COMMIT")

    def prepare(self) -> None:
        self.ids()  # raises the store's own faults before anything is written
        with store_faults(self._store):
            self._staged.touch()
        with self._session() as database:
            database.execute("CREATE TABLE IF NOT EXISTS new (id TEXT PRIMARY KEY, vector BLOB)")

    def write(
        self, ids: Sequence[StoreId], vectors: StoreVectors, *, replace: bool = False
    ) -> None:
        blobs = (each.tobytes() for each in np.asarray(vectors, "<f4"))
        rows = zip(map(json.dumps, ids), blobs, strict=True)
        with self._session() as database:
            database.executemany("INSERT OR REPLACE INTO new VALUES (?, ?)", rows)

    def read(self, ids: Sequence[StoreId]) -> Page:
        statement = "SELECT id, vector FROM new WHERE id IN (SELECT value FROM json_each(?))"
        with self._session() as database:
            keys = json.dumps([json.dumps(each) for each in ids])
            rows = database.execute(statement, (keys,)).fetchall()
        found = {json.loads(key): np.frombuffer(blob, "<f4") for key, blob in rows}
        return page_of(ids, found, self._dim)

    def count(self) -> int:
        if not self._staged.is_file():
            return 0
        with self._session() as database:
            return int(database.execute("SELECT count(*) FROM new").fetchone()[0])

    def build_index(self) -> None:
        """Forget rows that the application deleted meanwhile, and publish the others."""
        ids = self.ids()
        known = set(map(json.dumps, ids))
        with self._session() as database:
            there = database.execute("SELECT id FROM new").fetchall()
            gone = [row for row in there if row[0] not in known]
            database.executemany("DELETE FROM new WHERE id = ?", gone)
        self.publish(ids)

    def finish(self) -> None:
        """Delete the file. What was published is the application's."""
        with store_faults(self._store):
            self._staged.unlink(missing_ok=True)

    def abandon(self) -> None:
        self.finish()
        self.withdraw()
