"""The progress of a job, and when it stops."""

from __future__ import annotations

from app.jobs import progress, submission
from app.jobs.worker import JobResult, hand_back
from app.types import JobState
from tests.helpers import CONTEXT, again
from tests.jobs.helpers import at, going, never, run, turn


def test_progress_is_written_seldom_never_goes_back_and_a_sign_of_life_takes_no_fact_away(
    services, job, monkeypatch
):
    seen = []

    def report(progress, row, done, **facts):
        progress(done, 10, facts)
        found = again(services, row).progress
        assert found.pop("total") == 10
        seen.append(found)

    def work(services, row, progress_):
        report(progress_, row, 0, loss=0.5)
        report(progress_, row, 3, loss=0.4)  # too soon
        monkeypatch.setattr(progress, "PROGRESS_EVERY_S", 0)
        report(progress_, row, 2)
        monkeypatch.undo()
        report(progress_, row, 10, loss=0.3)  # the last step
        return JobResult({})

    run(services, job, work)
    first, second, last = ({"done": n, "loss": loss} for n, loss in ((0, 0.5), (3, 0.4), (10, 0.3)))
    assert seen == [first, first, second, last]


def test_a_step_that_tells_nothing_new_is_not_recorded_and_still_learns_of_cancellation(
    services, job, monkeypatch
):
    monkeypatch.setattr(progress, "PROGRESS_EVERY_S", 0)

    def work(services, row, progress):
        progress.checkpoint(1, at(1))
        progress(1, 10, {"loss": 0.5})
        version = again(services, row).version
        for _ in range(5):
            progress(1, 10)
        assert again(services, row).version == version
        assert submission.cancel_job(services, CONTEXT, row.id).state == JobState.running
        progress(1, 10)
        raise AssertionError("the report should have stopped it")

    row = run(services, job, work)
    assert (row.state, row.result, row.error) == (JobState.cancelled, None, None)
    assert row.checkpoint is None


def test_a_waiting_job_is_cancelled_at_once_never_runs_again_and_forgets_its_checkpoint(
    services, job
):
    going(services, job, 1)
    hand_back(services, again(services, job).lease)
    assert again(services, job).checkpoint is not None
    assert submission.cancel_job(services, CONTEXT, job.id).state == JobState.cancelled
    assert not turn(services, never)
    row = again(services, job)
    assert (row.state, row.attempts, row.checkpoint) == (JobState.cancelled, 0, None)
    assert row.finished_at is not None
