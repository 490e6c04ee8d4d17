"""Jobs: work that outlives a request. Their truth is a SQL row; the queue only carries an id, and may lose or repeat it.

A worker claims a job by a lease, which it renews while it lives. Whatever it writes, it writes under that lease: progress, the
end, and with the end, in the same transaction, what the job made. So a job may run twice, when a worker is lost or thought lost,
but its effect happens once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog
from sqlalchemy.orm import Session

from app import telemetry
from app.errors import AnchorageError, DatabaseUnavailable, JobFinished, QueueFull, TooManyJobs, Unavailable
from app.services.context import Origin, Services, origin
from app.services.writes import note
from app.storage import registry, tables
from app.storage.queue import QueueAway
from app.types import JobKind, JobState

log = logging.getLogger("anchorage.jobs")

#: progress is written at most this often
PROGRESS_EVERY_S = 0.25

#: a job whose worker is lost, or that fails by a fault of ours, is tried so many times in all
ATTEMPTS = 5

#: a queued job that nobody has claimed for so long is handed to the queue again, once the queue is empty
UNCLAIMED_S = 5.0

#: after a failed try: this, or as long as the error says, doubled with each
BACKOFF_S = 1.0

#: a queued job that nobody has claimed for so long beyond that may have lost its message in a queue that is never empty; then it
#: is handed over again after as long as it has waited, or so long
STALE_S = 30.0
STALEST_S = 300.0

#: clocks and queues count in whole milliseconds
EARLY_S = 0.1

#: jobs handed to the queue again in one sweep
SWEEP_ROWS = 1000


class Cancelled(Exception):
    """Raised inside a job whose cancellation was asked for; not an error of the service."""


class HandedBack(Exception):
    """Raised inside a job whose worker is asked to stop: the job waits for the next one."""


class LeaseLost(Exception):
    """Raised inside a job that another worker has taken over: what this one still does is not recorded."""


@dataclass(frozen=True)
class Done:
    """How a job ends well: its result, and what it adds to the database in the same transaction."""

    result: dict[str, Any]
    keep: Callable[[Session], None] = lambda session: None


Progress = Callable[[int, int, dict[str, Any]], None]
Run = Callable[[Services, tables.Job, Progress], Done]


class Leases:
    """The jobs that this process runs now, so that one thread can renew their leases while others work."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._held: set[str] = set()
        self._lock = threading.Lock()

    def until(self) -> datetime:
        return tables.now() + timedelta(seconds=self._services.lease_s)

    @contextmanager
    def hold(self, lease: str) -> Iterator[None]:
        with self._lock:
            self._held.add(lease)
        try:
            yield
        finally:
            with self._lock:
                self._held.discard(lease)

    def held(self) -> list[str]:
        with self._lock:
            return list(self._held)

    def renew(self) -> None:
        """Tell the database that this process lives."""
        if held := self.held():
            with self._services.db.transaction() as session:
                registry.renew_leases(session, held, until=self.until())

    def hand_back(self) -> None:
        """When a process stops: what it still runs waits for another one, and the try does not count."""
        for lease in self.held():
            hand_back(self._services, lease)


def submit(services: Services, project: str, kind: JobKind, arguments: dict[str, Any]) -> tables.Job:
    """Write a queued job down, then hand its id to a worker. Raises TooManyJobs, QueueFull."""
    limits = services.limits
    row = tables.Job(project=project, kind=kind, state=JobState.queued, arguments=arguments, progress={}, due_at=_due())
    with services.db.transaction() as session:
        if registry.count_unfinished(session, project) >= limits.project_jobs:
            raise TooManyJobs(
                f"this project has {limits.project_jobs} unfinished jobs, which is what is allowed",
                retry_after_s=10,
                limit=limits.project_jobs,
            )
        if registry.count_unfinished(session) >= limits.jobs:
            raise QueueFull("the queue is full; try again", retry_after_s=10, limit=limits.jobs)
        session.add(row)
        session.flush()
        note(session, project, "create", "job", row.id, row)
    _enqueue(services, row.id)
    return row


def cancel(services: Services, project: str, job_id: str) -> tables.Job:
    """Ask a job to stop: at once when it still waits, at its next step when it runs. Raises JobNotFound, JobFinished."""
    with services.db.transaction() as session:
        row = registry.job(session, project, job_id)
        if JobState(row.state).finished:
            raise JobFinished(f"job {job_id} is {row.state} already: there is nothing to cancel")
        registry.cancel_job(session, row.id, now=tables.now())
        note(session, project, "cancel", "job", row.id)
        session.flush()
        session.refresh(row)
    return row


def sweep(services: Services, *, queue_lost: bool, queue_empty: bool) -> int:
    """Hand to the queue again what no worker has: jobs of lost workers, and jobs whose message is lost. Returns how many.

    Raises QueueAway.

    queue_lost   the queue has lost its memory: everything that waits for a worker, and not for its next try, is handed over again
    queue_empty  nothing waits in the queue, so a job that has waited long enough is not in it
    """
    now = tables.now()
    stale = now - timedelta(seconds=STALE_S)
    with services.db.transaction() as session:
        if queue_lost:
            registry.make_due(session, stale)  # also those that this sweep is too short for
        due = _due() if queue_lost else now if queue_empty else stale
        unclaimed = registry.unclaimed_jobs(session, now=now, due=due, least_s=UNCLAIMED_S, most_s=STALEST_S, limit=SWEEP_ROWS)
        ids = [*unclaimed, *registry.retake_lost_jobs(session, now=now, again=_due())]
    for job_id in ids:
        services.enqueue(job_id, 0.0)
    return len(ids)


def hand_back(services: Services, lease: str) -> None:
    """Let a job wait for another worker; the try does not count."""
    with services.db.transaction() as session:
        row = registry.leased_job(session, lease)
        back = row is not None and registry.change_leased(
            session, lease, state=JobState.queued, lease=None, due_at=_due(), attempts=row.attempts - 1
        )
    if back and row is not None:
        _enqueue(services, row.id)


def run(
    services: Services,
    job_id: str,
    runners: dict[str, Run],
    leases: Leases,
    *,
    stopping: Callable[[], bool] = lambda: False,
) -> None:
    """A worker's whole turn with a job: claim it, run it, record how it ended. A job that another worker has is left alone.

    When `stopping()` turns true the job is handed back at its next step, and the try does not count.
    """
    lease = tables.new_id()
    with leases.hold(lease), structlog.contextvars.bound_contextvars(job_id=job_id):
        row = _claim(services, job_id, lease, leases)
        if row is None:
            return
        token = origin.set(Origin(text=f"job {job_id}"))
        started = time.monotonic()
        try:
            outcome = _run(services, row, lease, runners, stopping)
        except LeaseLost:
            outcome = "taken over"
        finally:
            origin.reset(token)
        seconds = time.monotonic() - started
        log.info("%s job %s after %.2f s, attempt %d", row.kind, outcome, seconds, row.attempts)
        telemetry.JOB_SECONDS.labels(row.kind, outcome).observe(seconds)


def _run(services: Services, row: tables.Job, lease: str, runners: dict[str, Run], stopping: Callable[[], bool]) -> str:
    """Run a claimed job and record its end; returns how it ended, in a word. Raises LeaseLost."""
    try:
        done = runners[row.kind](services, row, _reporter(services, lease, stopping))
        _finish(services, lease, JobState.succeeded, done=done)
    except Cancelled:
        _finish(services, lease, JobState.cancelled)
        return "cancelled"
    except HandedBack:
        hand_back(services, lease)
        return "handed back"
    except LeaseLost:
        raise
    except Unavailable as error:
        log.warning("%s: %s", error.code, error.detail)
        return _try_again(services, row, lease, {"code": error.code, "detail": error.detail}, error.retry_after_s or 0)
    except AnchorageError as error:
        _finish(services, lease, JobState.failed, error={"code": error.code, "detail": error.detail, "field": error.field})
        return "failed"
    except Exception:
        log.exception("a fault of the service")
        detail = "the job failed by a fault of the service; its log has the reason"
        return _try_again(services, row, lease, {"code": "internal", "detail": detail})
    return "succeeded"


def _claim(services: Services, job_id: str, lease: str, leases: Leases) -> tables.Job | None:
    now = tables.now()
    with services.db.transaction() as session:
        if not registry.claim_job(session, job_id, lease=lease, now=now, until=leases.until(), ready=_due(EARLY_S)):
            return None
        row = session.get_one(tables.Job, job_id)
        if row.cancel_requested:
            registry.change_leased(session, lease, state=JobState.cancelled, finished_at=now)
            return None
        if row.attempts > ATTEMPTS:
            error = {"code": "attempts-exhausted", "detail": f"its worker was lost {ATTEMPTS} times"}
            registry.change_leased(session, lease, state=JobState.failed, finished_at=now, error=error, attempts=ATTEMPTS)
            return None
        session.expunge(row)
    return row


def _reporter(services: Services, lease: str, stopping: Callable[[], bool]) -> Progress:
    """Record progress now and then, and learn of cancellation on the way. A database that is away is no reason to stop."""
    last = 0.0

    def report(done: int, total: int, extra: dict[str, Any]) -> None:
        nonlocal last
        if stopping():
            raise HandedBack
        if done < total and time.monotonic() - last < PROGRESS_EVERY_S:
            return
        last = time.monotonic()
        try:
            with services.db.transaction() as session:
                held = registry.change_leased(session, lease, progress={"done": done, "total": total, **extra})
                row = registry.leased_job(session, lease)
        except DatabaseUnavailable as error:
            log.warning("progress not recorded: %s", error.detail)
            return
        if not held or row is None:
            raise LeaseLost
        if row.cancel_requested:
            raise Cancelled

    return report


def _finish(
    services: Services, lease: str, state: JobState, *, done: Done | None = None, error: dict[str, Any] | None = None
) -> None:
    """Record the end, and with it what the job made: together, and only under a lease that still holds. Raises LeaseLost.

    A database that is away is tried for as long as the lease can be trusted to hold.
    """
    deadline = time.monotonic() + services.lease_s
    while True:
        try:
            with services.db.transaction() as session:
                result = None if done is None else done.result
                if not registry.change_leased(session, lease, state=state, finished_at=tables.now(), result=result, error=error):
                    raise LeaseLost
                if done is not None:
                    done.keep(session)
        except DatabaseUnavailable:
            if time.monotonic() >= deadline:
                raise
            time.sleep(BACKOFF_S)
        else:
            if done is not None:
                services.names.forget()  # what it made may have the name of what was just deleted
            return


def _try_again(services: Services, row: tables.Job, lease: str, error: dict[str, Any], wait_s: float = 0.0) -> str:
    """After a try that failed for a reason that may pass: wait and queue again, longer each time, or after the last one, end."""
    if row.attempts >= ATTEMPTS:
        _finish(services, lease, JobState.failed, error=error)
        return "failed"
    pause_s = max(BACKOFF_S, wait_s) * 2 ** (row.attempts - 1)
    with services.db.transaction() as session:
        registry.change_leased(session, lease, state=JobState.queued, lease=None, due_at=_due(pause_s), error=error)
    _enqueue(services, row.id, pause_s)
    return "to be tried again"


def _due(pause_s: float = 0.0) -> datetime:
    return tables.now() + timedelta(seconds=pause_s + UNCLAIMED_S)


def _enqueue(services: Services, job_id: str, pause_s: float = 0.0) -> None:
    """Hand a job's id over. A queue that is away is no error: a worker's sweep hands the job over when it is back."""
    try:
        services.enqueue(job_id, pause_s)
    except QueueAway as error:
        log.warning("job %s waits for the queue: %s", job_id, error)
