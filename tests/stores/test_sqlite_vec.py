"""What sqlite-vec adds to the contract: the tables of real users, locks, crashes and faults."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.errors import (
    ConnectorMissing,
    InvalidFilter,
    StoreChanged,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
    StoreUnsupported,
)
from app.stores import sqlite_vec
from app.stores.base import StoreLocation
from app.stores.sqlite_vec import SqliteVecStore, load_sqlite
from tests.disks import read_only, small_disk
from tests.stores.cases.base import Rows
from tests.stores.cases.sqlite_vec import SqliteVecCase, connect
from tests.stores.moving import (
    NEW_DIM,
    OLD_DIM,
    TAG,
    fill_migration,
    rows,
    translate,
)

CASE = SqliteVecCase()


@pytest.fixture
def filled(tmp_path: Path):
    location = CASE.fill(tmp_path, rows(CASE, 50))
    return location, SqliteVecStore(location)


def notes_file(folder: Path) -> tuple[StoreLocation, Any]:
    """Return a file as LangChain's SQLiteVec writes it: a table, and a trigger that fills vec0."""
    location = StoreLocation("sqlite-vec", str(folder / "notes.db"), "notes_vec")
    database = connect(location)
    assert OLD_DIM == 6
    database.executescript(
        """
        CREATE TABLE notes (rowid INTEGER PRIMARY KEY, text TEXT, metadata BLOB, embedding BLOB);
        CREATE VIRTUAL TABLE notes_vec USING vec0(
          rowid INTEGER PRIMARY KEY, /* of notes, */ embedding float[6]
        );
        CREATE TRIGGER embed AFTER INSERT ON notes BEGIN
          INSERT INTO notes_vec(rowid, embedding) VALUES (new.rowid, new.embedding);
        END;
        CREATE VIEW newest AS SELECT rowid FROM notes_vec;
        """
    )
    add_notes(database, rows(CASE, 30))
    return location, database


def add_notes(database: Any, some: Rows) -> None:
    written = [
        (id, payload["text"], np.asarray(vector, "<f4").tobytes())
        for id, vector, payload in zip(some.ids, some.vectors, some.payloads, strict=True)
    ]
    database.executemany("INSERT INTO notes(rowid, text, embedding) VALUES (?, ?, ?)", written)


def test_texts_come_from_another_table(tmp_path):
    location, client = notes_file(tmp_path)
    texts = SqliteVecStore(
        StoreLocation("sqlite-vec", location.url, "notes_vec", text_field="notes.text")
    )
    assert texts.texts([3, 4000, 5]) == ["item 3 é", None, "item 5 é"]
    assert texts.facts().metric == "euclidean"
    client.close()


def test_text_that_is_not_utf_8_is_refused_with_its_column(filled):
    location, store = filled
    with closing(connect(location)) as client:
        client.execute("UPDATE items SET json = CAST(x'ff41' AS TEXT) WHERE id = 7")
    with pytest.raises(StoreUnsupported, match=r"column `json` .* not UTF-8"):
        store.checksum()


def test_text_ids_keep_their_rows(tmp_path):
    location = StoreLocation("sqlite-vec", str(tmp_path / "a.db"), 'my "docs"')
    first = rows(CASE, 20)
    with closing(connect(location)) as database:
        database.execute(
            f'CREATE VIRTUAL TABLE "my ""docs""" USING vec0(doc TEXT PRIMARY KEY, v f32[{OLD_DIM}])'
        )
        database.executemany(
            'INSERT INTO "my ""docs""" VALUES (?, ?)',
            [
                (f"it's {id}", each.tobytes())
                for id, each in zip(first.ids, first.vectors, strict=True)
            ],
        )
        store = SqliteVecStore(location)
        migration = store.migration(TAG, NEW_DIM)
        fill_migration(store, migration, 3)
        ids = [f"it's {id}" for id in first.ids]
        expected = translate(None, first.vectors)
        assert np.allclose(migration.read(ids).vectors, expected, atol=1e-6)
    assert list(store.fetch(["it's 3", 3, "x"]).ids) == ["it's 3"]


def test_a_lock_that_a_client_holds_ends_a_write_with_a_sentence(filled, monkeypatch):
    monkeypatch.setattr(sqlite_vec, "BUSY_S", 0.1)
    location, store = filled
    with closing(connect(location)) as client:
        client.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="lock"):
            store.migration(TAG, NEW_DIM).prepare()
        assert store.facts().rows == 50
    store.migration(TAG, NEW_DIM).prepare()


def test_filters_compare_partition_keys_and_metadata(filled):
    _, store = filled
    query = rows(CASE, 50).vectors[:1]
    [hits] = store.search(query, 50, filter={"number": {">=": 3, "<": 9}, "part": "part 0"})
    assert sorted(hits.ids) == [3, 6]
    for wrong in (
        "number < 5",
        {"json": "x"},
        {"number": {"or 1": 1}},
        {"number": [1]},
        {"number": 2**64 - 1},
    ):
        with pytest.raises(InvalidFilter):
            store.search(query, 3, filter=wrong)
    with pytest.raises(StoreUnsupported, match="4096"):
        store.search(query, 4097)


@pytest.mark.parametrize(
    ("columns", "options", "problem"),
    [
        ("id integer primary key, v int8[8]", {}, "none"),
        ("v float[8], w float[8]", {}, "v, w"),
        ("v float[8] distance_metric=L1", {}, "distance `l1`"),
        ("v float[8]", {"id_field": "id"}, "`rowid`"),
        ("v float[8]", {"vector_field": "w"}, "vector_field"),
    ],
)
def test_tables_that_cannot_be_migrated_are_refused(tmp_path, columns, options, problem):
    location = StoreLocation("sqlite-vec", str(tmp_path / "a.db"), "t", **options)
    with closing(connect(location)) as database:
        database.execute(f"CREATE VIRTUAL TABLE t USING vec0({columns})")
    with pytest.raises(StoreUnsupported, match=problem):
        SqliteVecStore(location).facts()


def test_missing_files_and_tables_are_named(filled, tmp_path):
    location, store = filled
    with pytest.raises(StoreUnavailable, match="no file"):
        SqliteVecStore(StoreLocation("sqlite-vec", str(tmp_path / "none.db"), "items")).facts()
    assert not (tmp_path / "none.db").exists()
    with pytest.raises(StoreChanged, match="vec0 tables: `items`"):
        SqliteVecStore(StoreLocation("sqlite-vec", location.url, "item")).facts()
    (tmp_path / "text.db").write_text("no database " * 100)
    with pytest.raises(StoreUnavailable, match="not a database"):
        SqliteVecStore(StoreLocation("sqlite-vec", str(tmp_path / "text.db"), "items")).facts()
    with pytest.raises(StoreUnsupported, match=r"table\.column"):
        SqliteVecStore(
            StoreLocation("sqlite-vec", location.url, "items", text_field="notes.text")
        ).texts([1])
    with closing(connect(location)) as client:
        client.execute("DROP TABLE items")
    with pytest.raises(StoreChanged):
        store.scroll(None, 5)


def test_a_python_without_extensions_says_what_to_install():
    with pytest.raises(ConnectorMissing, match="pysqlite3-binary"):
        load_sqlite(("json", "no_such_module"))


def test_a_full_disk_and_a_read_only_one_keep_the_table(tmp_path):
    with small_disk(tmp_path / "disk", 2 * 1024) as disk:
        location = CASE.fill(disk, rows(CASE, 50))
        store = SqliteVecStore(location)
        with read_only(disk), pytest.raises(StoreRefused):
            store.migration(TAG, NEW_DIM).prepare()
        migration = store.migration(TAG, 4096)
        migration.prepare()
        wide = np.random.default_rng(0).normal(size=(50, 4096)).astype(np.float32)
        with pytest.raises((StoreFull, StoreUnavailable)):  # sqlite-vec hides the reason
            migration.write(list(range(50)), wide)
        assert len(CASE.read(location)) == 50
