"""A silent PostgreSQL: its processes are stopped, and the kernel still acknowledges data."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from app.db.postgres import STATEMENT_S
from app.db.session import CHECKOUT_S, POOL_OVERFLOW, POOL_SIZE, Database
from app.errors import DatabaseUnavailable
from tests.waiting import slack, until

#: for a machine that does much else
SLACK_S = 2.0


@pytest.fixture
def db(own_postgres) -> Iterator[Database]:
    db = Database(own_postgres.url)
    yield db
    own_postgres.thaw()
    db.close()


def ask(db: Database) -> int:
    with db.transaction() as session:
        return int(session.scalar(text("SELECT 1")) or 0)


def seconds_until_refused(call, *arguments) -> float:
    begun = time.monotonic()
    with pytest.raises((DatabaseUnavailable, SQLAlchemyError)):
        call(*arguments)
    return time.monotonic() - begun


@pytest.mark.parametrize("connected", [True, False])
def test_a_transaction_that_begins_in_silence_fails_soon_and_the_next_ones_at_once(
    db, own_postgres, connected
):
    if connected:
        ask(db)
    own_postgres.freeze()
    # without a connection, libpq's connect_timeout counts
    most_s = CHECKOUT_S if connected else 3
    assert seconds_until_refused(ask, db) < slack() * (most_s + SLACK_S)
    assert db.away
    with ThreadPoolExecutor(64) as threads:  # many more than the pool has connections
        begun = time.monotonic()
        refused = list(threads.map(lambda _: seconds_until_refused(ask, db), range(256)))
        assert max(refused) < slack() * SLACK_S
        assert time.monotonic() - begun < slack() * (2 * SLACK_S)
    assert seconds_until_refused(db.ping) < 1.0 * slack()


@pytest.mark.parametrize("end", ["SELECT 2", "COMMIT"])
def test_a_transaction_that_silence_meets_half_way_ends_within_the_deadline_of_a_statement(
    db, own_postgres, end
):
    def begin_and_freeze() -> None:
        with db.transaction() as session:
            session.execute(text("SELECT 1"))
            own_postgres.freeze()
            if end != "COMMIT":
                session.execute(text(end))

    ask(db)
    took_s = seconds_until_refused(begin_and_freeze)
    assert STATEMENT_S - 0.5 < took_s < slack() * (STATEMENT_S + SLACK_S)


def test_when_the_server_answers_again_so_does_the_database(db, own_postgres):
    with ThreadPoolExecutor(POOL_SIZE + POOL_OVERFLOW) as threads:
        list(threads.map(lambda _: ask(db), range(100)))
        own_postgres.freeze()
        list(threads.map(lambda _: seconds_until_refused(ask, db), range(100)))
        own_postgres.thaw()
        until(lambda: not db.away, 5)
        assert list(threads.map(lambda _: ask(db), range(100))) == [1] * 100


def test_a_slow_statement_is_ended_by_a_well_server_and_its_connection_stays(db):
    with db.transaction() as session:
        process = session.scalar(text("SELECT pg_backend_pid()"))
    begun = time.monotonic()
    with pytest.raises(DatabaseUnavailable), db.transaction() as session:
        session.execute(text("SELECT pg_sleep(20)"))
    assert time.monotonic() - begun < slack() * (STATEMENT_S + SLACK_S)
    assert not db.away
    with db.transaction() as session:
        assert session.scalar(text("SELECT pg_backend_pid()")) == process
