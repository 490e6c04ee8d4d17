"""The engine: commit, rollback, conflicts, and moments in UTC."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import SQLAlchemyError

from app.db import tables
from app.db.session import Database, is_sqlite, sqlite_url
from app.errors import Conflict, DatabaseUnavailable, InvalidRequest
from tests.db.helpers import closed, end_connections


@pytest.fixture
def db(empty: Database) -> Database:
    return empty


def encoder(name="e", **more) -> tables.EncoderRow:
    values = {"name": name, "kind": "external", "dim": 2, "modality": "text", **more}
    return tables.EncoderRow(**values)


def names(db) -> list[str]:
    found = select(tables.EncoderRow.name).order_by(tables.EncoderRow.name)
    with db.transaction() as session:
        return list(session.scalars(found))


def test_a_transaction_commits_at_its_end_and_its_rows_stay_readable(db):
    row = encoder()
    with db.transaction() as session:
        session.add(row)
        session.flush()
        assert names(db) == []  # a reader is not held up by a writer
    assert names(db) == ["e"]
    assert (row.name, row.project, len(row.id), row.options) == ("e", "default", 32, {})


def test_a_broken_constraint_is_a_conflict_and_leaves_nothing(db):
    with db.transaction() as session:
        session.add(encoder("taken"))
    gone = {"blob": "0" * 64, "encoder_id": "0" * 32}
    head = tables.HeadRow(name="h", kind="linear", dim=2, classes=["a"], outputs=1, **gone)
    for wrong in (encoder("taken"), head):
        with pytest.raises(Conflict, match="Try again"), db.transaction() as session:
            session.add_all([encoder("new"), wrong])
    assert names(db) == ["taken"]


def test_writers_at_the_same_moment_wait_for_each_other(db):
    def write(number):
        with db.transaction() as session:
            session.scalars(select(tables.EncoderRow)).all()  # a reader that becomes a writer
            session.add(encoder(f"e{number}"))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(64)))
    assert len(names(db)) == 64


def test_moments_come_back_aware_and_in_utc(db):
    before = datetime.now(UTC)
    elsewhere = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=5)))
    with db.transaction() as session:
        if not is_sqlite(db.url):  # the server may be in another zone
            session.execute(text("SET LOCAL timezone = 'Asia/Kolkata'"))
        session.add_all([encoder("a"), encoder("b", created_at=elsewhere)])
        session.add(tables.JobRow(kind="bootstrap", state="queued", arguments={}))
        session.flush()
        session.expire_all()
        rows = select(tables.EncoderRow.created_at).order_by(tables.EncoderRow.name)
        own, given = session.scalars(rows)
        assert session.scalars(select(tables.JobRow.started_at)).one() is None
    assert own.utcoffset() == given.utcoffset() == timedelta(0)
    assert before <= own <= datetime.now(UTC)
    assert given == elsewhere


@pytest.mark.parametrize("folder", ["é@:#", "a?mode=memory"])
def test_the_data_folder_may_have_any_name(tmp_path, folder):
    (tmp_path / folder).mkdir()
    db = Database(sqlite_url(tmp_path / folder / "anchorage.db"))
    db.upgrade()
    db.close()
    assert (tmp_path / folder / "anchorage.db").is_file()


# --- what a database cannot hold ------------------------------------------------------------------


@pytest.mark.parametrize(
    "row", [{"name": "a\0b"}, {"name": "x" * 101}, {"dim": 2**40}, {"options": {"x": float("nan")}}]
)
def test_what_postgresql_cannot_hold_is_an_invalid_request_and_leaves_nothing(postgres, row):
    with pytest.raises(InvalidRequest), postgres.transaction() as session:
        session.add_all([encoder("good"), encoder(**row)])
    assert names(postgres) == []


# --- a database that goes away --------------------------------------------------------------------


def add_and_lose(postgres: Database, row: tables.EncoderRow, *more: tables.EncoderRow) -> None:
    """Add a row in a transaction whose connection is lost before it adds more and commits."""
    with postgres.transaction() as session:
        session.add(row)
        session.flush()
        end_connections(postgres)
        session.add_all(more)
        session.flush()


@pytest.mark.parametrize("more", [[], ["second"]], ids=["at its commit", "before it"])
def test_a_connection_lost_within_a_transaction_is_said_and_nothing_of_it_is_committed(
    postgres, more
):
    with pytest.raises(DatabaseUnavailable) as caught:
        add_and_lose(postgres, encoder("first"), *(encoder(name) for name in more))
    assert caught.value.retry_after_s > 0
    assert names(postgres) == []


def test_a_server_that_is_not_there_is_unavailable_and_says_when_to_ask_again(monkeypatch):
    monkeypatch.setattr("app.db.session.CONNECT_FOR_S", 0.2)
    db = Database("postgresql://nobody@127.0.0.1:1/nothing")
    with pytest.raises(DatabaseUnavailable) as caught, db.transaction():
        pass
    assert caught.value.retry_after_s > 0
    with pytest.raises(SQLAlchemyError):
        db.ping()
    db.close()


def test_a_server_that_comes_back_in_time_is_waited_for(postgres):
    """As in a restart: no new connections for a moment, and the old ones gone."""
    with ThreadPoolExecutor(1) as pool:
        with closed(postgres):
            found = pool.submit(names, postgres)
            time.sleep(0.5)
            waited = not found.done()
        assert found.result() == []
        assert waited


def test_a_transaction_whose_process_is_frozen_does_not_hold_its_rows_for_ever(
    migrated_postgres, monkeypatch
):
    """PostgreSQL ends the idle transaction, so that the waiting one continues or times out."""
    monkeypatch.setattr("app.db.session.STALLED_MS", 500)
    frozen, other = Database(migrated_postgres), Database(migrated_postgres)

    def freeze_until_others_have_read() -> None:
        with frozen.transaction() as stalled:
            stalled.execute(text("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE"))
            for _ in range(20):
                try:
                    with other.transaction() as session:
                        session.execute(text("SELECT count(*) FROM jobs"))
                except DatabaseUnavailable:
                    continue
                break
            else:
                raise AssertionError("the rows were never free")
            stalled.execute(text("SELECT 1"))

    with pytest.raises(DatabaseUnavailable):
        freeze_until_others_have_read()
    frozen.close()
    other.close()
