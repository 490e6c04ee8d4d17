"""Stored vectors of texts on both databases, and the budget of texts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import delete, update

from app.db import tables
from app.db.budget import TextBudget
from app.db.session import Database
from app.search import queries
from app.search.queries import StoreRowId, row_digest

DIGESTS = [bytes([number]) * 32 for number in range(20)]


@pytest.fixture
def db(empty: Database) -> Database:
    with empty.transaction() as session:
        session.add(tables.EncoderRow(id="e", name="e", kind="external", dim=1, modality="text"))
        session.flush()
        store = {"kind": "qdrant", "address": "main", "collection": "docs", "encoder_id": "e"}
        session.add(tables.StoreRow(id="s", name="s", **store))
    return empty


def add(db: Database, rows: dict[bytes, StoreRowId]) -> None:
    with db.transaction() as session:
        queries.add_vectors(session, "e", dict.fromkeys(DIGESTS, b"1234"), rows)


def find(db: Database) -> dict[bytes, tuple[bytes, str | None]]:
    with db.transaction() as session:
        return queries.find_vectors(session, "e", DIGESTS)


def test_a_text_has_the_row_that_was_named_first_and_goes_with_it(db: Database) -> None:
    add(db, {})
    rows = {digest: StoreRowId("s", row_digest(row)) for row, digest in enumerate(DIGESTS[:15])}
    add(db, rows)
    add(db, dict.fromkeys(DIGESTS, StoreRowId("s", row_digest("another"))))
    assert {store for _, store in find(db).values()} == {"s"}
    with db.transaction() as session:
        assert queries.delete_of_rows(session, "another") == 0
        assert queries.delete_of_rows(session, "s", [row_digest(3), row_digest("3")]) == 1
        assert queries.delete_of_rows(session, "s") == 19


@pytest.mark.parametrize(("owner", "left"), [(tables.StoreRow, 5), (tables.EncoderRow, 0)])
def test_vectors_go_with_their_store_and_their_encoder(db: Database, owner, left: int) -> None:
    add(db, {digest: StoreRowId("s", row_digest(1)) for digest in DIGESTS[:15]})
    with db.transaction() as session:
        session.execute(delete(tables.StoreRow))  # which holds its encoder
        session.execute(delete(owner))
    assert len(find(db)) == left


def test_the_oldest_go_first(db: Database) -> None:
    add(db, {})
    with db.transaction() as session:
        old = update(tables.NativeVectorRow).where(tables.NativeVectorRow.digest.in_(DIGESTS[:3]))
        session.execute(old.values(made_at=tables.now() - timedelta(days=1)))
    size = queries.ROW_BYTES + 4
    with db.transaction() as session:
        assert queries.spare_vectors(session, 20 * size) == 0
        assert queries.spare_vectors(session, 17 * size) == 3
        assert queries.delete_oldest(session, 3) == 3
    assert set(find(db)) == set(DIGESTS[3:])


@pytest.mark.parametrize("url", [None, "redis://127.0.0.1:6379", "redis://127.0.0.1:1"])
def test_a_budget_is_never_exceeded_however_many_come_at_once(url: str | None, tmp_path) -> None:
    budget = TextBudget(45, url, f"test-{tmp_path}")
    with ThreadPoolExecutor(8) as pool:
        allowed = list(pool.map(lambda _: budget.spend("one", 10), range(4)))
    assert allowed == [10] * 4
    assert [budget.spend("one", 10), budget.spend("one", 10)] == [5, 0]
    assert TextBudget(5_000, url, f"test-{tmp_path}", a_day=1_000).spend("other", 2_000) == 1_000
    assert TextBudget(10, a_day=0).spend("one", 1) == 0
