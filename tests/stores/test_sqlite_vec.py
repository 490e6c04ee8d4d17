"""What sqlite-vec adds to the contract: the tables of real users, filters and full disks."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.errors import InvalidFilter, StoreChanged, StoreUnavailable, StoreUnsupported
from app.stores.port import Search, StoreLocation
from app.stores.sqlite_vec import SqliteVecStore
from tests.stores.cases.sqlite_vec import SqliteVecCase, connect
from tests.stores.moving import NEW_DIM, OLD_DIM, TAG, fill_migration, rows, translate

CASE = SqliteVecCase()


@pytest.fixture
def filled(tmp_path: Path):
    location = CASE.fill(tmp_path, rows(CASE, 50))
    return location, SqliteVecStore(location)


def test_texts_come_from_another_table(tmp_path):
    """As in a file that LangChain's SQLiteVec writes."""
    location = StoreLocation(
        "sqlite-vec", str(tmp_path / "notes.db"), "notes_vec", text_field="notes.text"
    )
    some = rows(CASE, 30)
    with closing(connect(location)) as client:
        client.executescript(
            f"""
            CREATE TABLE notes (rowid INTEGER PRIMARY KEY, text TEXT, embedding BLOB);
            CREATE VIRTUAL TABLE notes_vec USING vec0(
              rowid INTEGER PRIMARY KEY, /* of notes, */ embedding float[{OLD_DIM}]
            );
            """
        )
        for id, vector, payload in zip(some.ids, some.vectors, some.payloads, strict=True):
            client.execute("INSERT INTO notes(rowid, text) VALUES (?, ?)", (id, payload["text"]))
            client.execute("INSERT INTO notes_vec VALUES (?, ?)", (id, vector.tobytes()))
    texts = SqliteVecStore(location)
    assert texts.texts([3, 4000, 5]) == ["item 3 é", None, "item 5 é"]
    assert texts.facts().metric == "euclidean"


def test_text_ids_keep_their_rows(tmp_path):
    location = StoreLocation("sqlite-vec", str(tmp_path / "a.db"), 'my "docs"')
    first = rows(CASE, 20)
    with closing(connect(location)) as database:
        database.execute(
            f'CREATE VIRTUAL TABLE "my ""docs""" USING vec0(doc TEXT PRIMARY KEY, v f32[{OLD_DIM}])'
        )
        pairs = zip(first.ids, first.vectors, strict=True)
        values = [(f"it's {id}", each.tobytes()) for id, each in pairs]
        database.executemany('INSERT INTO "my ""docs""" VALUES (?, ?)', values)
        store = SqliteVecStore(location)
        migration = store.migration(TAG, NEW_DIM)
        fill_migration(store, migration, 3)
        ids = [f"it's {id}" for id in first.ids]
        expected = translate(None, first.vectors)
        assert np.allclose(migration.read(ids).vectors, expected, atol=1e-6)
    assert list(store.fetch(["it's 3", 3, "x"]).ids) == ["it's 3"]


def test_a_filter_and_too_many_results_are_refused(filled):
    _, store = filled
    query = rows(CASE, 50).vectors[:1]
    with pytest.raises(InvalidFilter, match="no filters"):
        store.search(Search(query, 3, filter={"number": 3}))
    with pytest.raises(StoreUnsupported, match="4096"):
        store.search(Search(query, 4097))


@pytest.mark.parametrize(
    "columns",
    [
        "v int8[8]",
        "v float[8] distance_metric=L1",
        "v float[8], w float[8]",
        "v float[8], b bit[8]",
    ],
)
def test_tables_that_cannot_be_migrated_are_refused(tmp_path, columns):
    location = StoreLocation("sqlite-vec", str(tmp_path / "a.db"), "t")
    with closing(connect(location)) as database:
        database.execute(f"CREATE VIRTUAL TABLE t USING vec0({columns})")
    with pytest.raises(StoreUnsupported, match="one column of floats"):
        SqliteVecStore(location).facts()


def test_missing_files_and_tables_are_named(filled, tmp_path):
    location, _ = filled
    with pytest.raises(StoreUnavailable, match="no file"):
        SqliteVecStore(StoreLocation("sqlite-vec", str(tmp_path / "none.db"), "items")).facts()
    assert not (tmp_path / "none.db").exists()
    with pytest.raises(StoreChanged, match="no vec0 table `item`"):
        SqliteVecStore(StoreLocation("sqlite-vec", location.url, "item")).facts()
    (tmp_path / "text.db").write_text("no database " * 100)
    with pytest.raises(StoreUnavailable, match="not a database"):
        SqliteVecStore(StoreLocation("sqlite-vec", str(tmp_path / "text.db"), "items")).facts()
    for field in ("notes.text", "boddy"):  # SQLite would take an unknown column for a text
        with pytest.raises(StoreUnsupported, match="no column") as error:
            SqliteVecStore(replace(location, text_field=field)).texts([1])
        assert error.value.field == "text_field"
