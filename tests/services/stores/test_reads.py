"""Rows that searches read, in a real database."""

from __future__ import annotations

import threading
import time

import pytest

from app.services.context import Services
from app.storage import tables
from app.storage.queries import store_reads as queries
from app.storage.queries.store_reads import ReadBy
from tests.services.helpers import create_encoder


def reader(services: Services) -> ReadBy:
    encoder = create_encoder(services, "old", 8)
    store = tables.StoreRow(
        project="default",
        name="docs",
        kind="lancedb",
        address="main",
        collection="docs",
        options={},
        encoder_id=encoder.id,
    )
    with services.db.transaction() as session:
        session.add(store)
        session.flush()
        return ReadBy(store.id, encoder.id)


def test_reads_keep_the_kind_of_their_ids(on_sqlite: Services) -> None:
    of = reader(on_sqlite)
    with on_sqlite.db.transaction() as session:
        queries.add_reads(session, of, [7, "7", -1, 2**60 + 1])
        queries.set_native(session, of, {7: True, 99: True})
        assert set(queries.reads(session, of, 9)) == {7, "7", -1, 2**60 + 1}
        assert queries.read_of(session, of, [7, "7", 8], is_native=True) == {7}
        assert queries.native_share(session, of) == (4, 1)
        queries.delete_reads_of_store(session, of.store_id)
        assert queries.reads(session, of, 9) == [7]  # until the migration ends
        queries.reset_native(session, of)
        queries.delete_reads_of_store(session, of.store_id)
        assert queries.reads(session, of, 9) == []


def test_searches_and_a_migration_lock_rows_in_one_order(
    on_postgres: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "MAX_READS", 150)
    of = reader(on_postgres)
    errors: list[Exception] = []
    ends = time.monotonic() + 3

    def repeat(number: int) -> None:
        draw = number
        while time.monotonic() < ends:
            draw = (draw * 1_103_515_245 + 12_345) % 2**31
            rows = [(draw + step * (2 * number + 1)) % 200 for step in range(60)]
            try:
                with on_postgres.db.transaction() as session:
                    if number % 2:
                        queries.set_native(session, of, {each: each % 3 == 0 for each in rows})
                    else:
                        queries.add_reads(session, of, rows)
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=repeat, args=[number]) for number in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert errors == []
