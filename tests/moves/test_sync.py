"""Writes of clients reach the other side, before and after a cutover."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from app.jobs.submission import cancel_job
from app.moves import steps, sync
from app.moves.context import open_migration
from app.moves.lease import take_lease
from app.stores.port import Store
from app.types import MigrationState
from tests.helpers import CONTEXT, alter
from tests.moves.moving import NEW_DIM, OLD_DIM, ROWS, Moving, expected, old_vectors
from tests.waiting import until
from workers.main import Worker


def store_of(moving: Moving) -> Store:
    return open_migration(moving.services, moving.now.row).store


def test_writes_before_a_cutover_are_translated(filled: Moving) -> None:
    changed = old_vectors(2, 30)
    filled.insert(3, changed)
    filled.insert(ROWS, old_vectors(1, 31))
    filled.insert(6, np.zeros((1, OLD_DIM), np.float32))
    filled.execute("DELETE FROM {} WHERE id = 9")
    assert sync.sync_all(filled.services) >= 5
    found = filled.new_vectors()
    assert set(found) == (set(range(ROWS)) | {ROWS}) - {6, 9}
    assert np.allclose(found[4], expected(filled, changed)[1], atol=1e-5)
    assert filled.now.row.position["applied"] >= 5
    assert sync.sync_all(filled.services) == 0


def test_a_job_is_queued_while_the_service_synchronises_writes(filled: Moving) -> None:
    stopped = threading.Event()

    def write_and_sync(row: int) -> None:
        while not stopped.is_set():
            filled.insert(row, old_vectors(1, 30))
            sync.sync_all(filled.services)

    with ThreadPoolExecutor(2) as executor:
        both = [executor.submit(write_and_sync, row) for row in range(2)]
        try:
            for _ in range(30):
                cancel_job(filled.services, CONTEXT, filled.queue("verify").id)
        finally:
            stopped.set()
    assert [each.result() for each in both] == [None, None]
    assert filled.do("verify").result["passed"]


def test_writes_after_a_cutover_are_translated_back_until_the_end(verified: Moving) -> None:
    steps.take_step(verified.services, CONTEXT, verified.id, "cutover")
    new = expected(verified, old_vectors(3, 40))
    verified.insert(ROWS, new)
    verified.execute("DELETE FROM {} WHERE id = 1")
    assert sync.sync_all(verified.services) >= 4
    page = store_of(verified).fetch([ROWS, ROWS + 2, 1])
    back = verified.maps.backward.map_rows(new).vectors
    assert list(page.ids) == [ROWS, ROWS + 2]
    assert np.allclose(page.vectors, back[[0, 2]], atol=1e-5)
    steps.take_step(verified.services, CONTEXT, verified.id, "rollback")
    rows = verified.read()
    assert set(rows) == set(range(ROWS + 3)) - {1}
    assert np.allclose(rows[ROWS + 1][0], back[1], atol=1e-5)
    verified.insert(2, old_vectors(1, 41))
    assert sync.sync_all(verified.services) == 2
    steps.take_step(verified.services, CONTEXT, verified.id, "cutover")
    rows = verified.read()
    assert set(rows) == set(range(ROWS + 3)) - {1}
    assert np.allclose(rows[2][0], expected(verified, old_vectors(1, 41))[0], atol=1e-5)


def test_a_round_ends_when_the_worker_stops_and_a_job_synchronises_at_once(filled: Moving) -> None:
    changed = old_vectors(250, 50)
    filled.insert(0, changed)
    answers = iter([False, True])
    first = sync.sync_all(filled.services, stopping=lambda: next(answers))
    assert 0 < first <= 100
    assert filled.do("sync").result["applied"] >= 250 - first
    assert np.allclose(filled.new_vectors()[249], expected(filled, changed)[249], atol=1e-5)


def test_many_writes_of_one_row_hide_no_write_of_another(filled: Moving) -> None:
    for seed in range(120):
        filled.insert(3, old_vectors(1, seed))
    changed = old_vectors(1, 200)
    filled.insert(4, changed)
    filled.do("sync")
    assert np.allclose(filled.new_vectors()[4], expected(filled, changed)[0], atol=1e-5)


def test_a_migration_that_is_worked_on_or_in_a_step_is_left_alone(filled: Moving) -> None:
    filled.insert(3, old_vectors(1, 60))
    with take_lease(filled.services, filled.id):
        assert sync.sync_all(filled.services) == 0
    position = filled.now.row.position
    alter(filled.services, filled.row, position={**position, "step": "cutover"})
    assert sync.sync_all(filled.services) == 0
    alter(filled.services, filled.row, position=position)
    assert sync.sync_all(filled.services) == 2


def test_a_slow_search_for_changes_is_repeated_rarely(filled: Moving) -> None:
    due: dict[str, float] = {}
    begun = time.monotonic()
    sync.sync_all(filled.services, due=due)
    took = time.monotonic() - begun
    assert begun < due[filled.id] <= begun + took / sync.SYNC_SHARE
    due[filled.id] += 60
    filled.insert(3, old_vectors(1, 60))
    assert sync.sync_all(filled.services, due=due) == 0
    due[filled.id] = begun
    assert sync.sync_all(filled.services, due=due) == 2


def test_a_fault_after_a_batch_that_was_applied_is_kept(filled: Moving) -> None:
    alter(filled.services, filled.row, plan={**filled.row.plan, "batch": 10})
    new = f"anchorage_{filled.id[:8]}_new"
    filled.execute(f"ALTER TABLE {new} ADD CONSTRAINT refused CHECK (id <> {ROWS + 12}) NOT VALID")
    filled.insert(ROWS, old_vectors(15, 33))
    sync.sync_all(filled.services)
    now = filled.now.row
    assert now.error["code"] == "store-refused"
    assert now.position["applied"] >= 10
    filled.execute(f"ALTER TABLE {new} DROP CONSTRAINT refused")
    sync.sync_all(filled.services)
    assert filled.now.row.error is None


def test_a_fault_of_the_service_in_one_migration_does_not_keep_the_others_waiting(
    filled: Moving, begin, caplog: pytest.LogCaptureFixture
) -> None:
    others = [begin(), begin()]
    for each in others:
        each.do("run")
        each.insert(3, old_vectors(1, 80))
    broken = others.pop(0)
    alter(broken.services, broken.row, plan={**broken.now.row.plan, "batch": "many"})
    due: dict[str, float] = {}
    assert sync.sync_all(filled.services, due=due) == 2
    assert set(due) == {filled.id, broken.id, others[0].id}
    assert np.allclose(
        others[0].new_vectors()[3], expected(filled, old_vectors(1, 80))[0], atol=1e-5
    )
    assert f"cannot synchronise migration {broken.id}" in caplog.text
    assert "in open_migration" in caplog.text
    assert broken.server.url not in caplog.text


def test_a_worker_synchronises_by_itself(verified: Moving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.main.SYNC_S", 0.05)
    worker = Worker(verified.services, threading.Event())
    worker.start()
    try:
        verified.insert(7, old_vectors(1, 90))
        target = expected(verified, old_vectors(1, 90))[0]
        until(lambda: np.allclose(verified.new_vectors()[7], target, atol=1e-5))
        steps.take_step(verified.services, CONTEXT, verified.id, "cutover")
        verified.insert(ROWS, expected(verified, old_vectors(1, 95)))
        until(lambda: len(store_of(verified).fetch([ROWS]).ids) == 1)
    finally:
        worker.stop()
    assert worker.alive is False
    assert {len(vector) for vector, _ in verified.read().values()} == {NEW_DIM}


def test_a_store_that_was_restored_from_before_the_cutover(filled: Moving) -> None:
    alter(filled.services, filled.now.row, state=MigrationState.cut_over)
    changed = old_vectors(1, 30)
    filled.insert(3, changed)
    assert sync.sync_all(filled.services) >= 1
    assert np.allclose(filled.new_vectors()[3], expected(filled, changed)[0], atol=1e-5)
