"""Stored vectors of texts, and budgets, on both databases."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select, update

from app.db.session import Database
from app.db.tables import NativeVectorRow
from app.search import queries as queries
from app.search.queries import StoreRowId, VectorSpace


@pytest.fixture
def db(empty: Database) -> Database:
    return empty


SPACE = VectorSpace("default", "f" * 32, "document")
DIGESTS = [bytes([number]) * 32 for number in range(20)]


def add(db: Database, rows: dict[bytes, StoreRowId]) -> None:
    with db.transaction() as session:
        queries.add_vectors(session, SPACE, dict.fromkeys(DIGESTS, b"1234"), rows)


def test_first_texts_of_a_project_are_counted_once_however_many_come_at_once(db: Database) -> None:
    def spend(_: int) -> int:
        with db.transaction() as session:
            return queries.spend_texts(session, "new", 10, 45, 1_000)

    with ThreadPoolExecutor(8) as pool:
        allowed = list(pool.map(spend, range(8)))
    assert sorted(allowed) == [0, 0, 0, 5, 10, 10, 10, 10]
    with db.transaction() as session:
        assert queries.spend_texts(session, "other", 2_000, 5_000, 1_000) == 1_000


def test_reads_at_once_of_old_vectors_wait_for_nobody(db: Database) -> None:
    add(db, {})
    with db.transaction() as session:
        session.execute(update(NativeVectorRow).values(read_hour=1))

    def read(turn: int) -> int:
        order = DIGESTS if turn % 2 else DIGESTS[::-1]
        with db.transaction() as session:
            found, is_due = queries.find_vectors(session, SPACE, order)
        if is_due:
            with db.transaction() as session:
                queries.touch_vectors(session, SPACE, order, {})
        return len(found)

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(read, range(12))) == [20] * 12
    with db.transaction() as session:
        assert 1 not in session.scalars(select(NativeVectorRow.read_hour)).all()


def test_vectors_of_a_store_that_was_deleted_meanwhile_are_not_stored(db: Database) -> None:
    add(db, {digest: StoreRowId.of("gone", 1) for digest in DIGESTS[:15]})
    with db.transaction() as session:
        assert len(queries.find_vectors(session, SPACE, DIGESTS)[0]) == 5


def test_the_oldest_go_first(db: Database) -> None:
    add(db, {})
    with db.transaction() as session:
        old = update(NativeVectorRow).where(NativeVectorRow.digest.in_(DIGESTS[:3]))
        session.execute(old.values(read_hour=1))
    size = queries.ROW_BYTES + 4
    with db.transaction() as session:
        assert queries.spare_vectors(session, 20 * size) == 0
        assert queries.spare_vectors(session, 17 * size) == 3
        assert queries.delete_oldest(session, 3) == 3
        assert set(queries.find_vectors(session, SPACE, DIGESTS)[0]) == set(DIGESTS[3:])


@pytest.mark.parametrize("row", [7, "7", "é" * 500])
def test_ids_of_any_length_and_type_are_told_apart(row: int | str) -> None:
    assert len(StoreRowId.of("s", row).row_id) == 64
    assert StoreRowId.of("s", 7) != StoreRowId.of("s", "7")
