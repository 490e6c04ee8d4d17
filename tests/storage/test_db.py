"""The engine: commit, rollback, conflicts, and moments in UTC."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import SQLAlchemyError

from app.errors import Conflict
from app.storage import tables
from app.storage.db import Database, is_sqlite, sqlite_url


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    db = Database(f"sqlite:///{tmp_path / 'test.db'}")
    db.migrate()
    yield db
    db.close()


def encoder(name="e", **more) -> tables.Encoder:
    return tables.Encoder(name=name, kind="external", dim=2, modality="text", **more)


def names(db) -> list[str]:
    with db.transaction() as session:
        return list(session.scalars(select(tables.Encoder.name).order_by(tables.Encoder.name)))


def test_a_transaction_commits_at_its_end(db):
    with db.transaction() as session:
        session.add(encoder())
        assert names(db) == []
    assert names(db) == ["e"]


def test_any_exception_takes_everything_back(db):
    def fail():
        with db.transaction() as session:
            session.add_all([encoder("a"), encoder("b")])
            session.flush()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert names(db) == []


def test_rows_stay_readable_after_the_commit(db):
    row = encoder()
    with db.transaction() as session:
        session.add(row)
    assert (row.name, row.project, len(row.id), row.options) == ("e", "default", 32, {})


def test_a_broken_constraint_is_a_conflict_and_leaves_nothing(db):
    with db.transaction() as session:
        session.add(encoder("taken"))
    with pytest.raises(Conflict, match="try again"), db.transaction() as session:
        session.add_all([encoder("new"), encoder("taken")])
    assert names(db) == ["taken"]


def test_a_name_is_taken_within_its_project_only(db):
    with db.transaction() as session:
        session.add_all([encoder("e", project="a"), encoder("e", project="b")])
    assert names(db) == ["e", "e"]


def test_foreign_keys_are_kept(db):
    with pytest.raises(Conflict), db.transaction() as session:
        session.add(tables.Head(name="h", kind="linear", dim=2, classes=["a"], blob="0" * 64, encoder_id="0" * 32))


def test_writers_at_the_same_moment_wait_for_each_other(db):
    def write(number):
        with db.transaction() as session:
            session.scalars(select(tables.Encoder)).all()  # a reader that becomes a writer
            session.add(encoder(f"e{number}"))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(64)))
    assert len(names(db)) == 64


def test_a_reader_is_not_held_up_by_a_writer(db):
    with db.transaction() as session:
        session.add(encoder())
        session.flush()
        assert names(db) == []


def test_moments_come_back_aware_and_in_utc(db):
    before = datetime.now(UTC)
    with db.transaction() as session:
        session.add(encoder())
    with db.transaction() as session:
        created = session.scalars(select(tables.Encoder)).one().created_at
    assert created.tzinfo is not None
    assert created.utcoffset() == timedelta(0)
    assert before <= created <= datetime.now(UTC)


def test_a_moment_of_another_zone_stays_the_same_moment(db):
    moment = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=5)))
    with db.transaction() as session:
        session.add(encoder(created_at=moment))
    with db.transaction() as session:
        assert session.scalars(select(tables.Encoder)).one().created_at == moment


def test_a_missing_moment_stays_missing(db):
    with db.transaction() as session:
        session.add(tables.Job(kind="bootstrap", state="queued", arguments={}))
    with db.transaction() as session:
        assert session.scalars(select(tables.Job)).one().started_at is None


def test_ping_raises_when_there_is_no_database(tmp_path):
    db = Database(f"sqlite:///{tmp_path / 'no' / 'such' / 'folder.db'}")
    with pytest.raises(SQLAlchemyError):
        db.ping()


@pytest.mark.parametrize("folder", ["plain", "a b", "é", "a#b", "a@b:c", "a%20b", "100%", "a?b", "a?mode=memory"])
def test_the_data_folder_may_have_any_name(tmp_path, folder):
    (tmp_path / folder).mkdir()
    db = Database(sqlite_url(tmp_path / folder / "anchorage.db"))
    db.migrate()
    db.close()
    assert (tmp_path / folder / "anchorage.db").is_file()


def test_write_ahead_log_is_on(db):
    with db.transaction() as session:
        assert session.scalar(text("PRAGMA journal_mode")) == "wal"


def test_is_sqlite():
    assert is_sqlite("sqlite:///x.db")
    assert not is_sqlite("postgresql+psycopg://u@h/d")
