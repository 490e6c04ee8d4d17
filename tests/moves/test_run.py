"""Runs: every row gets the vector of the maps, in whatever pieces the run is done."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from app.db import tables
from app.errors import MigrationActive
from app.jobs import progress as job_progress
from app.jobs import submission
from app.moves import queries, steps
from app.moves import service as migrations
from app.moves.context import open_migration
from app.moves.run import COUNTS, Run
from app.types import JobKind, JobState
from tests.helpers import CONTEXT, again, alter
from tests.moves.moving import NEW_DIM, ROWS, Moving, expected, old_vectors, same
from tests.waiting import until


def test_a_run_gives_every_row_a_new_vector_and_changes_no_old_one(moving: Moving) -> None:
    before = moving.read()
    job = moving.do("run")
    assert (job.state, moving.state) == (JobState.succeeded, "filled")
    assert job.result == {**dict.fromkeys(COUNTS, 0), "rows": ROWS}
    assert same(moving, old_vectors(ROWS))
    after = moving.read()
    assert all(np.array_equal(after[each][0], before[each][0]) for each in before)
    assert moving.now.row.found["before"]["rows"] == ROWS
    assert moving.now.progress["rows"] == moving.now.progress["total"] == ROWS
    assert moving.now.next == ["verify", "sync", "run", "abandon"]


def test_rows_that_clients_write_during_a_run_move_its_counts(
    moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int, int]] = []
    report = Run._report

    def write_and_report(run: Run, phase: str, **facts: int) -> None:
        if phase == "sweep" and "sweep" not in [each[0] for each in seen]:
            moving.insert(3, old_vectors(2, 30))
            moving.insert(ROWS, old_vectors(40, 31))
        report(run, phase, **facts)
        seen.append((phase, run._facts["applied"], run._position.get("total", 0)))

    monkeypatch.setattr(Run, "_report", write_and_report)
    monkeypatch.setattr("app.moves.run.DRAINED_EVERY_S", math.inf)  # on a slow machine
    moving.do("run")
    assert ("changes", 0, ROWS + 40) in seen
    assert max(applied for phase, applied, _ in seen if phase == "changes") >= 2
    assert moving.now.progress["applied"] >= 2


def test_rows_without_a_direction_are_named(begin: Callable[..., Moving]) -> None:
    vectors = old_vectors(300)
    vectors[[7, 150, 299]] = 0
    moving = begin(vectors)
    assert moving.do("run").result["skipped"] == 3
    assert moving.now.row.found["skipped"] == [7, 150, 299]
    assert set(range(300)) - set(moving.new_vectors()) == {7, 150, 299}

    def verify() -> dict[str, Any]:
        return moving.do("verify").result["rows"]  # type: ignore[no-any-return]

    counts = verify()
    assert counts.items() >= {"passed": True, "rows": 300, "new": 297, "skipped": 3}.items()
    steps.take_step(moving.services, CONTEXT, moving.id, "cutover")
    with moving.connect() as connection:
        seen = connection.execute(f"SELECT id, embedding IS NULL FROM {moving.table}")  # noqa: S608
        empty = dict(seen.fetchall())
    assert len(empty) == 300
    assert {each for each in empty if empty[each]} == {7, 150, 299}
    assert verify()["passed"]
    steps.take_step(moving.services, CONTEXT, moving.id, "rollback")
    assert verify()["passed"]


def test_writes_during_a_run_get_new_vectors_too(begin: Callable[..., Moving]) -> None:
    moving = begin(rows_per_second=2000)
    changed, added = old_vectors(40, 77), old_vectors(60, 78)

    def write() -> None:
        until(lambda: moving.now.row.position.get("rows", 0) >= 200)
        for number in range(0, 40, 10):
            moving.insert(number, changed[number : number + 10])
        moving.execute("DELETE FROM {} WHERE id IN (50, 51)")
        moving.insert(ROWS, added)

    with ThreadPoolExecutor() as pool:
        written = pool.submit(write)
        assert moving.do("run").state == JobState.succeeded
        written.result()
    moving.do("sync")
    wanted = np.concatenate([changed, old_vectors(ROWS)[40:], added])
    found = moving.new_vectors()
    assert set(found) == set(range(len(wanted))) - {50, 51}
    kept = sorted(found)
    made = np.stack([found[each] for each in kept])
    assert np.allclose(made, expected(moving, wanted[kept]), atol=1e-5)


def test_a_run_that_the_queue_cancelled_between_two_attempts_is_paused(moving: Moving) -> None:
    """As after a pause while the store does not answer: the attempt ends, and no other begins."""
    job = moving.queue("run")
    begun = {"state": JobState.running, "attempts": 1, "lease": "lost"}
    alter(moving.services, job, **begun, lease_until=tables.now() + timedelta(minutes=1))
    assert migrations.pause(moving.services, CONTEXT, moving.id).row.state == "running"
    alter(moving.services, job, state=JobState.queued, lease=None, due_at=job.created_at)
    moving.work()
    assert again(moving.services, job).state == JobState.cancelled
    assert (moving.state, moving.now.next) == ("paused", ["run", "abandon"])
    listed = migrations.list_migrations(moving.services, CONTEXT.project)
    assert [each.row.state for each in listed] == ["paused"]
    moving.do("run")
    assert moving.state == "filled"


def test_a_job_that_ends_while_its_migration_is_read_is_seen_with_what_it_found(
    moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    moving.do("run")
    moving.queue("verify")
    read = queries.migration
    monkeypatch.setattr(queries, "migration", lambda *a, **o: (read(*a, **o), moving.work())[0])
    seen = moving.now
    assert (seen.is_busy, seen.row.found["verify"]["passed"]) == (False, True)


def test_a_run_that_waits_is_paused_at_once(moving: Moving) -> None:
    job = moving.queue("run")
    assert migrations.pause(moving.services, CONTEXT, moving.id).row.state == "paused"
    assert again(moving.services, job).state == JobState.cancelled
    assert not moving.work()
    assert migrations.pause(moving.services, CONTEXT, moving.id).row.state == "paused"


def test_of_two_requests_at_once_one_queues_a_job(moving: Moving) -> None:
    together = threading.Barrier(4)

    def ask(_: int) -> str:
        together.wait(30)
        try:
            return moving.queue("run").id
        except MigrationActive as error:
            return error.code

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, range(4)))
    assert answers.count("migration-active") == 3
    assert moving.now.row.job_id in answers
    for action in ("verify", "sync"):
        with pytest.raises(MigrationActive):
            moving.queue(action)
    for step in ("cutover", "abandon"):
        with pytest.raises(MigrationActive, match="Job"):
            steps.take_step(moving.services, CONTEXT, moving.id, step)


def test_a_run_keeps_to_its_rows_a_second(begin: Callable[..., Moving]) -> None:
    moving = begin(old_vectors(600), rows_per_second=1000)
    begun = time.monotonic()
    moving.do("run")
    assert time.monotonic() - begun >= 0.55


def test_a_long_run_lets_other_jobs_go_first_and_keeps_its_place(
    begin: Callable[..., Moving], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_progress, "TURN_S", 0.0)
    moving = begin(old_vectors(500))
    job = moving.queue("run")
    other = submission.submit_job(moving.services, CONTEXT, JobKind.bootstrap, {})
    assert moving.work()
    row = again(moving.services, job)
    assert (row.state, row.attempts, moving.state) == (JobState.queued, 0, "running")
    assert moving.now.row.position["rows"] == 100
    assert row.due_at > again(moving.services, other).due_at
    alter(moving.services, other, finished_at=tables.now(), state=JobState.cancelled)
    assert moving.work()
    assert again(moving.services, job).state == JobState.succeeded
    assert same(moving, old_vectors(500))


def test_a_second_run_of_a_filled_store_sweeps_again_and_forgets_the_verification(
    filled: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a store that captures no writes: what it has already is written again."""
    filled.do("verify")
    assert filled.now.row.found["verify"]["passed"]
    move = open_migration(filled.services, filled.now.row)
    move.migration.write([3], np.ones((1, NEW_DIM), np.float32), replace=True)
    other = replace(move.store.capabilities, captures_writes=False)
    monkeypatch.setattr(type(move.store), "capabilities", other)
    filled.do("run")
    assert filled.state == "filled"
    assert "verify" not in filled.now.row.found
    assert same(filled, old_vectors(ROWS))


def test_a_job_whose_worker_was_lost_in_the_middle_is_taken_over(moving: Moving) -> None:
    job = moving.queue("run")
    moving.work(stopping=lambda: moving.now.row.position.get("rows", 0) >= 300)
    # as a killed worker leaves it: under leases, of which the store's has not ended yet
    alter(moving.services, moving.row, lease="l", lease_until=tables.now() + timedelta(seconds=1))
    lease = {"lease": "lost", "lease_until": tables.now() - timedelta(seconds=1)}
    alter(moving.services, job, state=JobState.running, attempts=1, **lease)
    moving.work()
    assert again(moving.services, job).state == JobState.succeeded
    assert same(moving, old_vectors(ROWS))
