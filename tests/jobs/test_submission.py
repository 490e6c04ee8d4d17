"""Submitting jobs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import select

from app import errors
from app.context import RequestContext
from app.db import tables
from app.jobs import submission
from app.types import JobKind
from tests.helpers import CONTEXT, again
from tests.jobs.helpers import run, turn, well


def test_a_project_and_all_together_may_have_so_many_unfinished_jobs(services, monkeypatch):
    monkeypatch.setattr(submission, "PROJECT_JOBS", 2)
    first = submission.submit_job(services, CONTEXT, JobKind.bootstrap, {"x": 1})
    submission.submit_job(services, CONTEXT, JobKind.bootstrap, {"x": 1})
    with pytest.raises(errors.TooManyJobs) as caught:
        submission.submit_job(services, CONTEXT, JobKind.bootstrap, {})
    assert (caught.value.limit, caught.value.retry_after_s > 0) == (2, True)
    submission.submit_job(services, RequestContext("q"), JobKind.bootstrap, {})
    run(services, first, well)
    submission.submit_job(services, CONTEXT, JobKind.bootstrap, {})
    monkeypatch.setattr(submission, "JOBS", 3)
    with pytest.raises(errors.QueueFull) as full:
        submission.submit_job(services, RequestContext("r"), JobKind.bootstrap, {})
    assert full.value.retry_after_s > 0


def test_workers_are_woken_once_a_job_is_written_down_or_handed_back(services):
    seen: list[list[str]] = []

    def states() -> None:
        with services.db.transaction() as session:
            seen.append(list(session.scalars(select(tables.JobRow.state))))

    listening = replace(services, notify_workers=states)
    job = submission.submit_job(listening, CONTEXT, JobKind.bootstrap, {})
    assert seen == [["queued"]]
    run(listening, job, lambda services, row, progress: progress(1, 2), stopping=lambda: True)
    assert seen == [["queued"], ["queued"]]


def test_a_job_that_is_handed_back_keeps_its_place(services, job):
    other = submission.submit_job(services, CONTEXT, JobKind.bootstrap, {"x": 2})
    turn(services, lambda services, row, progress: progress(1, 2), stopping=lambda: True)
    turn(services, well)
    assert (again(services, job).state, again(services, other).state) == ("succeeded", "queued")
