"""Jobs: work that outlives a request. Their truth is a SQL row; the queue only carries an id."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from app.errors import AnchorageError, JobFinished
from app.services.context import Services
from app.storage import registry, tables
from app.types import JobKind, JobState

#: progress is written at most this often
PROGRESS_EVERY_S = 0.25

#: a job found running at start-up has lost its worker; after this many tries it fails
ATTEMPTS = 3


class Cancelled(Exception):
    """Raised inside a job whose cancellation was asked for; not an error of the service."""


class HandedBack(Exception):
    """Raised inside a job whose worker is asked to stop: the job waits for the next one."""


Progress = Callable[[int, int, dict[str, Any]], None]
Run = Callable[[Services, tables.Job, Progress], dict[str, Any]]


def submit(services: Services, project: str, kind: JobKind, arguments: dict[str, Any]) -> tables.Job:
    """Write a queued job down, then hand its id to a worker."""
    row = tables.Job(project=project, kind=kind, state=JobState.queued, arguments=arguments, progress={})
    with services.db.transaction() as session:
        session.add(row)
    services.enqueue(row.id)
    return row


def cancel(services: Services, project: str, job_id: str) -> tables.Job:
    """Ask a job to stop: at once when it still waits, at its next step when it runs. Raises JobNotFound, JobFinished."""
    with services.db.transaction() as session:
        row = registry.job(session, project, job_id)
        if JobState(row.state).finished:
            raise JobFinished(f"job {job_id} is {row.state} already: there is nothing to cancel")
        row.cancel_requested = True
        if registry.move_job(session, row.id, start=JobState.queued, end=JobState.cancelled):
            row.finished_at = tables.now()
        session.flush()
        session.refresh(row)
    return row


def recover(services: Services) -> int:
    """At start-up: hand every unfinished job to a worker again; returns how many."""
    with services.db.transaction() as session:
        rows = registry.unfinished_jobs(session)
        for row in rows:
            row.state = JobState.queued
    for row in rows:
        services.enqueue(row.id)
    return len(rows)


def hand_back(services: Services) -> None:
    """When a process stops: what it runs waits for the next one, and the try does not count."""
    with services.db.transaction() as session:
        for row in registry.unfinished_jobs(session):
            if registry.move_job(session, row.id, start=JobState.running, end=JobState.queued):
                session.refresh(row)
                row.attempts -= 1


def run(services: Services, job_id: str, runners: dict[str, Run], *, stopping: Callable[[], bool] = lambda: False) -> None:
    """A worker's whole turn with a job: claim it, run it, record how it ended. A job somebody else finished is left alone.

    When `stopping()` turns true the job is handed back at its next step, and the try does not count.
    """
    row = _claim(services, job_id)
    if row is None:
        return
    try:
        result = runners[row.kind](services, row, _reporter(services, row, stopping))
    except Cancelled:
        _finish(services, row, JobState.cancelled)
    except HandedBack:
        hand_back(services)
    except AnchorageError as error:
        _finish(services, row, JobState.failed, error={"code": error.code, "detail": error.detail, "field": error.field})
    except Exception:
        detail = "the job failed by a fault of the service; its log has the reason"
        _finish(services, row, JobState.failed, error={"code": "internal", "detail": detail})
        raise
    else:
        _finish(services, row, JobState.succeeded, result=result)


def _claim(services: Services, job_id: str) -> tables.Job | None:
    with services.db.transaction() as session:
        if not registry.move_job(session, job_id, start=JobState.queued, end=JobState.running):
            return None
        row = session.get_one(tables.Job, job_id)
        if row.attempts >= ATTEMPTS:
            row.state = JobState.failed
            row.finished_at = tables.now()
            row.error = {"code": "attempts-exhausted", "detail": f"its worker was lost {ATTEMPTS} times"}
            return None
        row.attempts += 1
        row.started_at = tables.now()
        return row


def _reporter(services: Services, row: tables.Job, stopping: Callable[[], bool]) -> Progress:
    """Record progress now and then, and learn of cancellation on the way."""
    last = 0.0

    def report(done: int, total: int, extra: dict[str, Any]) -> None:
        nonlocal last
        if stopping():
            raise HandedBack
        if done < total and time.monotonic() - last < PROGRESS_EVERY_S:
            return
        last = time.monotonic()
        with services.db.transaction() as session:
            current = session.get_one(tables.Job, row.id)
            current.progress = {"done": done, "total": total, **extra}
            asked = current.cancel_requested
        if asked:
            raise Cancelled

    return report


def _finish(
    services: Services,
    row: tables.Job,
    state: JobState,
    *,
    result: dict[str, Any] | None = None,
    error: dict[str, Any] | None = None,
) -> None:
    with services.db.transaction() as session:
        if not registry.move_job(session, row.id, start=JobState.running, end=state):
            return
        current = session.get_one(tables.Job, row.id)
        current.finished_at = tables.now()
        current.result = result
        current.error = error
