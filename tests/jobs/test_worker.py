"""How a job ends: its result, its errors, and what it writes."""

from __future__ import annotations

import math

import pytest
import torch

from app.db import tables
from app.errors import InvalidSeeds, NameTaken, QualityBelowMinimum, StorageUnavailable
from app.jobs import submission
from app.jobs import worker as runner
from app.jobs.worker import JobResult
from app.moves.context import without_url
from app.types import JobKind, JobState
from tests.db.helpers import closed, end_connections
from tests.helpers import CONTEXT, again
from tests.jobs.helpers import at, encoder, encoders, failing, never, run, turn, well
from tests.ops.test_devices import ILLEGAL


def test_a_job_that_ends_well_keeps_its_result_and_what_it_made_and_shows_no_earlier_error(
    services, job
):
    number = math.nan  # null in JSON

    def work(services, row, progress):
        progress(1, 2, {"loss": number, "each": [1.5, number], "by": {"mrr": number}})
        result = {"answer": 1, "loss": number}
        return JobResult(result, write=lambda session: session.add(encoder("made")))

    run(services, job, failing(ZeroDivisionError()))
    row = run(services, job, work)
    assert (row.state, row.attempts, row.error) == (JobState.succeeded, 2, None)
    assert row.result == {"answer": 1, "loss": None}
    facts = {"loss": None, "each": [1.5, None], "by": {"mrr": None}}
    assert row.progress == {"done": 1, "total": 2, **facts}
    assert row.started_at <= row.finished_at
    assert encoders(services) == ["made"]


@pytest.mark.parametrize(
    ("error", "members"),
    [
        (
            InvalidSeeds("x", field="seeds", rows=[3]),
            {"field": "seeds", "rows": [3], "row_count": 1},
        ),
        (
            QualityBelowMinimum("low", more={"found": {"mrr": 0.5, "recall": math.nan}}),
            {"field": None, "found": {"mrr": 0.5, "recall": None}},
        ),
    ],
)
def test_an_error_of_ours_ends_the_job_at_once_and_says_what_the_problem_document_would(
    services, job, error, members
):
    def work(services, row, progress):
        progress.checkpoint(1, at(1))
        raise error

    row = run(services, job, work)
    assert (row.state, row.result, row.attempts, row.checkpoint) == (JobState.failed, None, 1, None)
    assert row.error == {"code": error.code, "detail": error.detail, **members}


def test_an_error_while_keeping_fails_the_job_and_keeps_nothing(services, job):
    def keep(session):
        session.add(encoder("half"))
        session.flush()
        raise NameTaken("the name is gone")

    row = run(services, job, lambda *_: JobResult({"answer": 1}, write=keep))
    assert (row.state, row.result, row.error["code"]) == (JobState.failed, None, "name-taken")
    assert encoders(services) == []


@pytest.mark.parametrize(
    ("error", "recorded"),
    [
        (ZeroDivisionError("/secret/path"), {"code": "internal"}),
        (
            StorageUnavailable("the disk is full", retry_after_s=30),
            {"code": "storage-unavailable", "detail": "the disk is full"},
        ),
    ],
    ids=["a fault", "unavailable"],
)
def test_a_fault_is_tried_again_after_doubling_pauses_and_then_failed_without_its_inside(
    services, job, error, recorded
):
    seen, pauses = [], []
    for attempt in range(1, runner.MAX_ATTEMPTS + 1):
        begun = tables.now()
        row = run(services, job, failing(error))
        seen.append(row.state)
        pauses.append((row.due_at - begun).total_seconds())
        assert row.attempts == attempt
        assert row.error == {"detail": row.error["detail"], **recorded}
        assert "secret" not in row.error["detail"]
        assert not turn(services, never)  # before the pause is over
    assert seen == [JobState.queued] * (runner.MAX_ATTEMPTS - 1) + [JobState.failed]
    first_s = getattr(error, "retry_after_s", runner.JOB_BACKOFF_S)
    for number, pause in enumerate(pauses[:-1]):
        assert first_s * 2**number <= pause < first_s * 2**number + 1
    assert row.finished_at is not None


@pytest.mark.parametrize("flushed", [False, True])
def test_an_end_lost_on_its_way_is_recorded_again_with_what_the_job_made(
    on_postgres, monkeypatch, flushed
):
    monkeypatch.setattr(runner, "JOB_BACKOFF_S", 0.01)
    job = submission.submit_job(on_postgres, CONTEXT, JobKind.bootstrap, {})
    made, tries = encoder("made"), []

    def keep(session):
        tries.append(1)
        session.add(made)
        if flushed:
            session.flush()
        if len(tries) == 1:
            end_connections(on_postgres.db)

    row = run(on_postgres, job, lambda *_: JobResult({}, write=keep))
    assert (row.state, row.attempts, len(tries)) == (JobState.succeeded, 1, 2)
    assert encoders(on_postgres) == ["made"]


def test_progress_that_cannot_be_recorded_stops_no_job(on_postgres, monkeypatch):
    monkeypatch.setattr("app.db.session.CONNECT_FOR_S", 0.1)
    job = submission.submit_job(on_postgres, CONTEXT, JobKind.bootstrap, {"x": 1})

    def work(services, row, progress):
        with closed(services.db):
            progress(10, 10, {})
        return well(services, row, progress)

    row = run(on_postgres, job, work)
    assert (row.state, row.progress) == (JobState.succeeded, {})


# --- a device that fails --------------------------------------------------------------------------


def test_the_job_waits_for_another_process_and_this_attempt_counts(services, job):
    with pytest.raises(runner.DeviceBroken):
        run(services, job, failing(torch.AcceleratorError(ILLEGAL)))
    row = again(services, job)
    assert (row.state, row.attempts, row.lease) == (JobState.queued, 1, None)
    assert row.error["code"] == "device-failed"
    assert "cpu" in row.error["detail"]
    assert "illegal" not in row.error["detail"]
    row = run(services, job, well)
    assert (row.state, row.attempts, row.error) == (JobState.succeeded, 2, None)


def test_a_migration_passes_the_error_on(services):
    with pytest.raises(torch.AcceleratorError), without_url(services, tables.MigrationRow()):
        raise torch.AcceleratorError(ILLEGAL)
