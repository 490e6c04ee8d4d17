"""Leases of jobs: an effect happens once, whoever runs the job."""

from __future__ import annotations

import pytest

from app.db import tables
from app.jobs import progress, submission
from app.jobs import worker as runner
from app.jobs.worker import JobResult, Leases, hand_back
from app.types import JobKind, JobState
from tests.helpers import CONTEXT, ON_EACH_DATABASE, again, alter
from tests.jobs.helpers import LONG_AGO, encoder, encoders, failing, lose, run, taken_over, well


def making(name: str) -> runner.JobRunner:
    """A job whose result and row say who made them."""
    result = JobResult({"by": name}, write=lambda session: session.add(encoder(name)))
    return lambda services, row, progress: result


@ON_EACH_DATABASE
@pytest.mark.parametrize(
    "late",
    [
        making("first"),
        failing(ZeroDivisionError()),
        failing(progress.Requeued()),
        lambda services, row, progress: progress(10, 10, {}),
    ],
    ids=["success", "fault", "handed back", "progress"],
)
def test_a_worker_whose_job_was_taken_over_changes_nothing(services, job, late):
    row = taken_over(services, job, late, making("second"))
    assert (row.state, row.result, row.attempts) == (JobState.succeeded, {"by": "second"}, 2)
    assert (row.error, row.progress) == (None, {})
    assert encoders(services) == ["second"]


def test_a_process_renews_the_leases_of_its_running_jobs_only(services, job):
    leases = Leases(services)
    other = submission.submit_job(services, CONTEXT, JobKind.bootstrap, {})
    lose(services, other)

    def work(services, row, progress):
        alter(services, job, lease_until=tables.now() + LONG_AGO)
        leases.renew()
        assert again(services, job).lease_until > tables.now()
        return JobResult({})

    assert run(services, job, work, leases).state == JobState.succeeded
    assert again(services, other).lease_until < tables.now()


def test_a_stopping_worker_hands_its_job_back_and_the_try_does_not_count(services, job):
    def work(services, row, progress):
        progress(1, 10, {})
        raise AssertionError("the report should have stopped it")

    for _ in range(runner.MAX_ATTEMPTS + 1):
        row = run(services, job, work, stopping=lambda: True)
        assert (row.state, row.attempts, row.lease) == (JobState.queued, 0, None)
    assert run(services, job, well).attempts == 1


def test_handing_back_twice_or_too_late_changes_nothing(services, job):
    lose(services, job)
    lease = again(services, job).lease
    for _ in range(2):
        hand_back(services, lease)
    assert again(services, job).attempts == 0
    run(services, job, well)
    hand_back(services, lease)
    assert again(services, job).state == JobState.succeeded
