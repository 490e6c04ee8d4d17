"""Checkpoints of jobs: which are written, and who resumes from them."""

from __future__ import annotations

import math
import threading
from contextlib import suppress

import pytest
import torch

from app.context import Services
from app.db import tables
from app.errors import StorageUnavailable
from app.jobs import progress
from app.jobs import worker as runner
from app.jobs.worker import JobResult
from app.ops import retention
from app.types import JobState
from tests.helpers import again, age, files
from tests.jobs.helpers import at, going, never, run, step_of, taken_over
from tests.ops.test_devices import ILLEGAL


@pytest.fixture
def keep_all(monkeypatch):
    """Every state is kept."""
    monkeypatch.setattr(progress, "CHECKPOINT_EVERY_S", 0)
    monkeypatch.setattr(progress, "CHECKPOINT_SHARE", math.inf)


def resumed(services: Services, job: tables.JobRow) -> int | None:
    """A last turn, which ends well; returns the step from which it went on."""

    def work(services: Services, row: tables.JobRow, progress: progress.Progress) -> JobResult:
        return JobResult({"from": step_of(progress.resume())})

    row = run(services, job, work)
    assert row.state == JobState.succeeded
    return row.result["from"]  # type: ignore[no-any-return]


def test_tensors_that_share_memory_are_kept(services, job):
    whole = torch.arange(3.0)
    found = {}

    def work(services, row, progress):
        found.update(progress.resume() or {})
        progress.checkpoint(1, {"job": whole, "part": whole[1:]})
        raise StorageUnavailable("later")

    run(services, job, work)
    run(services, job, work)
    assert (found["job"].tolist(), found["part"].tolist()) == ([0, 1, 2], [1, 2])


def test_a_job_that_gets_further_each_time_may_lose_any_number_of_workers(services, job, keep_all):
    begun = [going(services, job, step, step + 1) for step in range(1, 2 * runner.MAX_ATTEMPTS)]
    assert begun == [None, *range(2, 2 * runner.MAX_ATTEMPTS)]
    assert again(services, job).attempts == 1
    assert resumed(services, job) == 2 * runner.MAX_ATTEMPTS


@pytest.mark.parametrize("steps", [(), (6, 7)])
def test_a_job_that_loses_its_worker_at_one_place_ends_after_five_tries(
    services, job, keep_all, steps
):
    going(services, job, 5, 6, 7)
    for _ in range(runner.MAX_ATTEMPTS - 1):
        assert going(services, job, *steps) == 7
    row = run(services, job, never)
    assert (row.state, row.checkpoint) == (JobState.failed, None)
    assert (row.attempts, row.error["code"]) == (runner.MAX_ATTEMPTS, "attempts-exhausted")
    assert "lost 5 times after step 7" in row.error["detail"]


def test_a_job_whose_checkpoint_cannot_be_read_begins_anew_goes_on_from_there_and_gains_no_tries(
    services, job, keep_all
):
    def lose_it() -> None:
        (name,) = files(services)
        (services.blobs.root / name[:2] / name).unlink()

    going(services, job, 5, 6)
    lose_it()
    assert going(services, job, 1, 2) is None
    assert going(services, job) == 2
    for _ in range(runner.MAX_ATTEMPTS - 3):
        lose_it()
        assert going(services, job, 1, 2) is None
    row = run(services, job, never)
    assert (row.state, row.error["code"]) == (JobState.failed, "attempts-exhausted")


def test_states_are_kept_seldom_but_for_the_first_that_is_further_than_any_before(services, job):
    assert going(services, job, 0, 1, 2, 3) is None
    assert going(services, job, 0, 1, 2, 3) == 1
    assert resumed(services, job) == 2  # 0: the first of its try; 2: beyond 1


def test_a_sweep_spares_the_checkpoint_of_an_unfinished_job_and_takes_an_ended_ones(
    services, job, keep_all
):
    going(services, job, *range(-9, 2))
    assert files(services) == {again(services, job).checkpoint}  # only the last one
    age(services)
    assert retention.sweep_blobs(services) == 0
    assert resumed(services, job) == 1
    assert retention.sweep_blobs(services) == 1
    assert files(services) == set()


@pytest.mark.parametrize("sign_of_life", [False, True])
def test_a_stopping_worker_keeps_the_last_state_however_young_and_the_next_goes_on_from_it(
    services, job, sign_of_life
):
    stopping = threading.Event()

    def work(services, row, progress):
        for step in range(1, 5):
            # The first is written at once, the others come too soon after it.
            progress.checkpoint(step, at(step))
            progress(step, 10, {"agreement": 0.5})
            if step == 3:
                stopping.set()
                if sign_of_life:
                    progress(0, 10)
        raise AssertionError("the report should have stopped it")

    def go_on(services, row, progress):
        step = step_of(progress.resume())
        progress(0, 10)  # takes away nothing that was told before
        return JobResult({"from": step})

    row = run(services, job, work, stopping=stopping.is_set)
    assert (row.state, row.attempts) == (JobState.queued, 0)
    row, last = run(services, job, go_on), 3 if sign_of_life else 4
    assert row.result == {"from": last}
    assert row.progress == {"done": last, "total": 10, "agreement": 0.5}


def test_a_worker_whose_job_was_taken_over_keeps_nothing_and_deletes_nothing(
    services, job, keep_all
):
    went_on = []

    def first(services, row, progress):
        progress.checkpoint(5, at(5))
        went_on.append(True)

    def second(services, row, progress):
        progress.checkpoint(5, at(5))  # the same state: the same file
        raise StorageUnavailable("later")

    row = taken_over(services, job, first, second)
    assert (row.state, row.furthest, went_on) == (JobState.queued, 5, [])
    assert resumed(services, job) == 5


@pytest.mark.parametrize(
    "error", [KeyError("what an older version called otherwise"), torch.AcceleratorError(ILLEGAL)]
)
def test_a_state_that_a_job_cannot_go_on_from_is_not_tried_twice(services, job, error):
    going(services, job, 5)

    def work(services, row, progress):
        if progress.resume() is not None:
            raise error
        return JobResult({"answer": 1})

    with suppress(runner.DeviceBroken):  # which ends the process
        run(services, job, work)
    assert again(services, job).state == JobState.queued
    assert run(services, job, work).state == JobState.succeeded


def test_a_full_disk_costs_checkpoints_and_not_the_job(services, job):
    def work(services, row, progress):
        services.blobs.root.rename(services.blobs.root.with_name("away"))
        services.blobs.root.touch()  # a file in place of the folder: nothing can be written
        try:
            for step in range(1, 4):
                progress.checkpoint(step, at(step))
        finally:
            services.blobs.root.unlink()
            services.blobs.root.with_name("away").rename(services.blobs.root)
        return JobResult({"answer": 1})

    row = run(services, job, work)
    assert (row.state, row.result, row.checkpoint) == (JobState.succeeded, {"answer": 1}, None)
