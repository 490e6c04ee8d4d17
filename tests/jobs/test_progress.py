"""The progress of a job, and when it stops."""

from __future__ import annotations

import pytest

from app import errors
from app.db import tables
from app.jobs import progress, submission
from app.jobs.worker import JobResult, hand_back
from app.types import JobState
from tests.helpers import CONTEXT, again, alter
from tests.jobs.helpers import at, going, never, run, turn


def test_progress_is_written_at_the_first_and_the_last_step_and_seldom_between(services, job):
    seen = []

    def work(services, row, progress):
        for step in range(1001):
            progress(step, 1000, {"loss": step / 2})
            if step in (0, 1, 1000):
                seen.append(again(services, row).progress)
        return JobResult({})

    run(services, job, work)
    assert seen[0] == seen[1] == {"done": 0, "total": 1000, "loss": 0.0}
    assert seen[2] == {"done": 1000, "total": 1000, "loss": 500.0}


def test_progress_never_goes_back_and_a_sign_of_life_takes_no_fact_away(services, job, monkeypatch):
    monkeypatch.setattr(progress, "PROGRESS_EVERY_S", 0)
    seen = []

    def work(services, row, progress):
        for done, facts in ((3, {"loss": 0.5, "round": 1}), (2, {}), (3, {"round": 2})):
            progress(done, 10, facts)
            seen.append(again(services, row).progress)
        return JobResult({})

    run(services, job, work)
    first, second = ({"done": 3, "total": 10, "loss": 0.5, "round": number} for number in (1, 2))
    assert seen == [first, first, second]


def test_a_step_that_tells_nothing_new_is_no_event_and_still_learns_of_cancellation(
    services, job, monkeypatch
):
    monkeypatch.setattr(progress, "PROGRESS_EVERY_S", 0)

    def work(services, row, progress):
        progress(1, 10, {"loss": 0.5})
        version = again(services, row).version
        for _ in range(5):
            progress(1, 10)
        assert again(services, row).version == version
        submission.cancel_job(services, CONTEXT, row.id)
        progress(1, 10)
        raise AssertionError("the report should have stopped it")

    assert run(services, job, work).state == JobState.cancelled


@pytest.mark.parametrize("tried", [False, True])
def test_a_waiting_job_is_cancelled_at_once_never_runs_again_and_forgets_its_checkpoint(
    services, job, tried
):
    if tried:
        going(services, job, 1)
        hand_back(services, again(services, job).lease)
        assert again(services, job).checkpoint is not None
    assert submission.cancel_job(services, CONTEXT, job.id).state == JobState.cancelled
    assert not turn(services, never)
    row = again(services, job)
    assert (row.state, row.attempts, row.checkpoint) == (JobState.cancelled, 0, None)
    assert row.finished_at is not None


def test_a_running_job_learns_at_its_next_report_that_it_should_stop_and_forgets_its_checkpoint(
    services, job
):
    def work(services, row, progress):
        progress.checkpoint(1, at(1))
        assert submission.cancel_job(services, CONTEXT, row.id).state == JobState.running
        progress(10, 10, {})
        raise AssertionError("the report should have stopped it")

    row = run(services, job, work)
    assert (row.state, row.result, row.error, row.checkpoint) == (
        JobState.cancelled,
        None,
        None,
        None,
    )


@pytest.mark.parametrize("state", ["succeeded", "cancelled"])
def test_a_finished_job_cannot_be_cancelled(services, job, state):
    alter(services, job, state=state, finished_at=tables.now())
    with pytest.raises(errors.JobFinished, match=state):
        submission.cancel_job(services, CONTEXT, job.id)
    assert not again(services, job).cancel_requested
