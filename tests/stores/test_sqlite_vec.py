"""What sqlite-vec adds to the contract: the tables of real users, locks, crashes and faults."""

from __future__ import annotations

import threading
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
    drain,
    fill_migration,
    rows,
    run_until_killed,
    same,
    translate,
    translate_back,
)

CASE = SqliteVecCase()


@pytest.fixture
def filled(tmp_path: Path):
    location = CASE.fill(tmp_path, rows(CASE, 50))
    return location, SqliteVecStore(location)


def schema_of(database: Any) -> set[tuple[str, str]]:
    """Return what is in the file, each with its definition."""
    found = database.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL")
    return {(name, sql.replace('"', "")) for name, sql in found}


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


def test_triggers_and_views_of_other_tables_follow_the_name(tmp_path):
    location, client = notes_file(tmp_path)
    texts = SqliteVecStore(
        StoreLocation("sqlite-vec", location.url, "notes_vec", text_field="notes.text")
    )
    assert texts.texts([3, 4000, 5]) == ["item 3 é", None, "item 5 é"]
    assert texts.facts().metric == "euclidean"
    before = schema_of(client)
    store = SqliteVecStore(location)
    migration = store.migration(TAG, NEW_DIM)
    fill_migration(store, migration)
    migration.cutover(translate)
    later = rows(CASE, 1, 70)
    add_notes(client, Rows(later.ids, translate(None, later.vectors), later.payloads))
    assert client.execute("SELECT count(*) FROM newest").fetchone() == (31,)
    drain_back = migration.changes(10)
    assert list(drain_back.ids) == [70]
    migration.apply(drain_back, translate_back([70], drain_back.vectors))
    migration.rollback(translate_back)
    assert client.execute("SELECT count(*) FROM newest").fetchone() == (31,)
    migration.cutover(translate)
    migration.finish()
    after = {(name, sql.replace(f"[{NEW_DIM}]", f"[{OLD_DIM}]")) for name, sql in schema_of(client)}
    plain = {(name, sql.split("USING vec0")[0]) for name, sql in before}
    assert {(name, sql.split("USING vec0")[0]) for name, sql in after} == plain
    client.close()


def test_text_that_is_not_utf_8_is_refused_with_its_column(filled):
    location, store = filled
    with closing(connect(location)) as client:
        client.execute("UPDATE items SET json = CAST(x'ff41' AS TEXT) WHERE id = 7")
    with pytest.raises(StoreUnsupported, match=r"column `json` .* not UTF-8"):
        store.checksum()


def test_tables_of_a_client_with_names_like_hidden_ones_keep_their_names(tmp_path):
    location = StoreLocation("sqlite-vec", str(tmp_path / "a.db"), "docs")
    names = {"docs_auxiliary", "docs_metadatatext00", "docs_metadatachunks01", "docs_notes"}
    with closing(connect(location)) as client:
        client.execute("CREATE VIRTUAL TABLE docs USING vec0(v float[6], year integer)")
        for each in names:
            client.execute(f"CREATE TABLE {each} (own TEXT)")
        client.execute("INSERT INTO docs (v, year) VALUES (?, 1)", (b"?" * 24,))
        before = schema_of(client)
        store = SqliteVecStore(location)
        migration = store.migration(TAG, NEW_DIM)
        fill_migration(store, migration)
        migration.cutover(translate)
        assert names <= {name for name, _ in schema_of(client)}
        migration.finish()
        assert {name for name, _ in schema_of(client)} == {name for name, _ in before}
        assert client.execute("SELECT rowid, year FROM docs").fetchall() == [(1, 1)]


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
        migration.cutover(translate)
        migration.finish()
        found = dict(database.execute('SELECT doc, v FROM "my ""docs"""'))
    assert set(found) == {f"it's {id}" for id in first.ids}
    expected = translate(None, first.vectors)
    assert np.allclose(np.frombuffer(found["it's 7"], "<f4"), expected[7], atol=1e-6)
    assert list(store.fetch(["it's 3", 3, "x"]).ids) == ["it's 3"]


def test_a_client_that_updates_only_a_vector_is_followed(filled):
    location, store = filled
    migration = store.migration(TAG, NEW_DIM)
    fill_migration(store, migration)
    other = rows(CASE, 1, 7, seed=1).vectors
    with closing(connect(location)) as client:
        client.execute("UPDATE items SET embedding = ? WHERE id = 7", (other.tobytes(),))
    assert list(migration.changes(10).ids) == [7]
    drain(migration)
    assert np.allclose(store.fetch([7], "new").vectors, translate(None, other), atol=1e-6)


def test_a_client_that_reads_during_the_cutover_keeps_its_snapshot(filled):
    location, store = filled
    migration = store.migration(TAG, NEW_DIM)
    fill_migration(store, migration)
    with closing(connect(location)) as client:
        client.execute("BEGIN")
        query = "SELECT length(embedding) FROM items WHERE id = 3"
        assert client.execute(query).fetchone() == (4 * OLD_DIM,)
        migration.cutover(translate)
        assert client.execute(query).fetchone() == (4 * OLD_DIM,)
        client.execute("COMMIT")
        assert client.execute(query).fetchone() == (4 * NEW_DIM,)


def test_clients_that_write_all_the_time_lose_nothing(filled):
    location, store = filled
    migration = store.migration(TAG, NEW_DIM)
    migration.prepare()
    stop = threading.Event()
    written = dict(enumerate(rows(CASE, 50).vectors))

    def write() -> None:
        for number in range(100, 160):
            for one in (rows(CASE, 1, number), rows(CASE, 1, number % 50, seed=number)):
                CASE.insert(location, one)
                written[one.ids[0]] = one.vectors[0]
            if stop.is_set():
                return

    writer = threading.Thread(target=write)
    writer.start()
    fill_migration(store, migration, 10)
    drain(migration)
    stop.set()
    writer.join()
    migration.cutover(translate)
    found = CASE.read(location)
    assert set(found) == set(written)
    for id, vector in written.items():
        assert np.allclose(found[id][0], translate(None, vector[None])[0], atol=1e-5)


@pytest.mark.parametrize("pages", [1, 20])
def test_a_run_killed_at_any_time_is_resumed_with_the_same_rows(tmp_path, pages):
    location = CASE.fill(tmp_path, rows(CASE, 100))
    run_until_killed(location, 5, pages)
    store = SqliteVecStore(location)
    migration = store.migration(TAG, NEW_DIM)
    fill_migration(store, migration)
    migration.cutover(translate)
    first = rows(CASE, 100)
    expected = Rows(first.ids, translate(None, first.vectors), first.payloads)
    assert same(CASE.read(location), expected)


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
