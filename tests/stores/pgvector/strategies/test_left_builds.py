"""The server continues the index build of a client that was killed."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from app.stores.pgvector.strategies import steps
from tests.stores.pgvector.tables import NEW_DIM, TAG, Table, translate

NEW = f'"{{s}}"."anchorage_{TAG}_new"'
INDEX = f"anchorage_{TAG}_index_0"


VALID = """
SELECT c.oid::bigint, i.indisvalid FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid
WHERE c.relname = %s AND c.relnamespace = '"{s}"'::regnamespace"""
BUILDS = "SELECT 1 FROM pg_stat_progress_create_index WHERE relid = 'NEW'::regclass"


def index_of(table: Table) -> tuple[int, bool]:
    [found] = table.execute(VALID, [INDEX])
    return found  # type: ignore[no-any-return]


def test_a_build_that_was_left_is_waited_for_and_used(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = table.store()
    beside = store.beside(TAG, NEW_DIM)
    beside.prepare()
    page = store.scroll(None, 30)
    beside.write(page.ids, translate(page.ids, page.vectors))
    with table.connect() as client, table.connect() as left:
        client.execute("BEGIN")
        table.on(client, "DELETE FROM NEW WHERE id = 0".replace("NEW", NEW))
        build = f'CREATE INDEX CONCURRENTLY "{INDEX}" ON {NEW} USING hnsw (embedding vector_l2_ops)'
        builder = threading.Thread(target=table.on, args=[left, build])
        builder.start()
        while not table.execute(BUILDS.replace("NEW", NEW)):
            assert builder.is_alive()
        first, valid = index_of(table)
        assert not valid
        beside.prepare()  # as the next run does: it waits for nothing

        waits = []

        def end_the_wait(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 1:
                client.execute("ROLLBACK")
            builder.join(seconds)

        monkeypatch.setattr(
            steps, "time", SimpleNamespace(sleep=end_the_wait, monotonic=time.monotonic)
        )
        beside.build_index()
        builder.join()
    assert waits
    assert index_of(table) == (first, True)
    beside.abandon()
