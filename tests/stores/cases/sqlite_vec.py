"""sqlite-vec for the contract suite: a vec0 table in a file, with each kind of column."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import sqlite_vec

from app.stores.port import StoreId, StoreLocation
from app.stores.sqlite_vec import SQLITE
from tests.stores.cases.base import Rows, StoreCase

COLUMNS = "part TEXT PARTITION KEY, number INTEGER, text TEXT, +json TEXT, +raw BLOB"


def connect(location: StoreLocation) -> Any:
    """Return a connection of a client, which commits each statement."""
    database = SQLITE.connect(location.url, timeout=20, isolation_level=None)
    database.enable_load_extension(True)
    sqlite_vec.load(database)
    return database


class SqliteVecCase(StoreCase):
    kind = "sqlite-vec"

    def fill(self, folder: Path, rows: Rows) -> StoreLocation:
        url = str(folder / "items.db")
        location = StoreLocation("sqlite-vec", url, "items", text_field="text")
        with closing(connect(location)) as database:
            database.execute("PRAGMA journal_mode = wal")
            database.execute(
                "CREATE VIRTUAL TABLE items USING vec0(id INTEGER PRIMARY KEY, -- the key\n"
                f"{COLUMNS}, embedding FLOAT[{rows.vectors.shape[1]}] distance_metric=cosine)"
            )
        self.insert(location, rows)
        return location

    def insert(self, location: StoreLocation, rows: Rows) -> None:
        with closing(connect(location)) as database:
            database.execute("BEGIN IMMEDIATE")
            for id, vector, payload in zip(rows.ids, rows.vectors, rows.payloads, strict=True):
                number = payload["number"]
                database.execute("DELETE FROM items WHERE id = ?", (id,))
                database.execute(
                    "INSERT INTO items (id, part, number, text, json, raw, embedding) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (
                        *(id, f"part {number % 3}", number, payload["text"], json.dumps(payload)),
                        bytes([number % 256]),
                        np.asarray(vector, "<f4").tobytes(),
                    ),
                )
            database.execute("COMMIT")

    def delete(self, location: StoreLocation, ids: Sequence[StoreId]) -> None:
        with closing(connect(location)) as database:
            database.executemany("DELETE FROM items WHERE id = ?", [(each,) for each in ids])

    def read(self, location: StoreLocation) -> dict[StoreId, tuple[np.ndarray, dict[str, Any]]]:
        rows = {}
        with closing(connect(location)) as database:
            for id, part, number, text, document, raw, blob in database.execute(
                "SELECT id, part, number, text, json, raw, embedding FROM items"
            ):
                payload = json.loads(document)
                assert (part, number, text, raw) == (
                    *(f"part {number % 3}", payload["number"], payload["text"]),
                    bytes([number % 256]),
                )
                rows[id] = np.frombuffer(blob, "<f4"), payload
        return rows
