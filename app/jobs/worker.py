"""Claims jobs under leases, runs them, and records how they end.

One transaction writes the end of a job, its result and what it created.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy.orm import Session

from app.context import Services
from app.db import leases as row_leases
from app.db import tables
from app.errors import AnchorageError, DatabaseUnavailable, Unavailable
from app.jobs import queries as jobs
from app.jobs.progress import Cancelled, LeaseLost, Progress, Requeued, Yielded, null_nonfinite
from app.ops import logs, metrics
from app.ops.devices import is_device_failure
from app.types import JobState

log = logging.getLogger("anchorage.jobs")

#: most attempts of a job that gets no further, because its workers are lost or a fault recurs
MAX_ATTEMPTS = 5

#: the pause after a failed attempt, unless the error names a longer one; it doubles with each
JOB_BACKOFF_S = 1.0


@dataclass(frozen=True)
class JobResult:
    """The result of a job, and `write`, which adds rows in the transaction that ends it."""

    result: dict[str, Any]
    write: Callable[[Session], object] = lambda session: None


class NoFurtherAttempt(Exception):
    """Raised by a runner for an error that another attempt would meet again."""

    def __init__(self, error: AnchorageError) -> None:
        super().__init__(error.detail)
        self.error = error


class DeviceBroken(Exception):
    """Raised after an attempt during which the accelerator of this process failed.

    Only another process can run jobs on it. outcome: how the attempt ended, as one word
    """

    def __init__(self, outcome: str) -> None:
        super().__init__(outcome)
        self.outcome = outcome


JobRunner = Callable[[Services, tables.JobRow, Progress], JobResult]


class Leases:
    """The lease of the job that this process runs. One thread renews it while another works."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._held: str | None = None

    @contextmanager
    def hold(self, lease: str) -> Iterator[None]:
        """Have the lease renewed inside this context."""
        self._held = lease
        try:
            yield
        finally:
            self._held = None

    def renew(self) -> None:
        """Extend the lease. Raises DatabaseUnavailable."""
        metrics.LEASES_RENEWED.set_to_current_time()
        if (held := self._held) is not None:
            with self._services.db.transaction() as session:
                jobs.renew_leases(session, [held], seconds=self._services.lease_s)

    def hand_back(self) -> None:
        """Return the running job to the queue: this process stops."""
        if (held := self._held) is not None:
            hand_back(self._services, held)


def run_next(
    services: Services,
    runners: dict[str, JobRunner],
    leases: Leases,
    *,
    stopping: Callable[[], bool] = lambda: False,
) -> bool:
    """Claim the next job that is due, run it, and record how it ended.

    Returns whether there was a job. When `stopping()` turns true, the job returns to the queue at
    its next step, and the attempt does not count. Raises DatabaseUnavailable, and DeviceBroken
    after which this process must run no other job.
    """
    lease = tables.new_id()
    with leases.hold(lease):
        with services.db.transaction() as session:
            row = _claim(session, lease, services.lease_s)
        if row is None:
            return False
        if row.state == JobState.running:
            with logs.bound(job_id=row.id):
                _run_claimed(services, row, lease, runners, stopping)
        return True


def _claim(session: Session, lease: str, seconds: float) -> tables.JobRow | None:
    """Claim the next job. The job ends at once if it was cancelled or has had too many attempts."""
    claimed = jobs.claim_next(session, lease=lease, seconds=seconds)
    if claimed is None:
        return None
    row, was_lost = claimed
    if was_lost:
        metrics.REQUEUED_JOBS.inc()
        log.warning("job %s starts again: its worker stopped renewing the lease", row.id)
    end: dict[str, Any] = {"finished_at": tables.now(), "checkpoint": None}
    if row.cancel_requested:
        jobs.change_leased(session, lease, **end, state=JobState.cancelled)
        session.refresh(row)
    elif row.attempts > MAX_ATTEMPTS:
        where = f" after step {row.furthest}" if row.furthest else ""
        error = {
            "code": "attempts-exhausted",
            "detail": f"the job's worker was lost {MAX_ATTEMPTS} times{where}",
        }
        jobs.change_leased(
            session, lease, **end, state=JobState.failed, error=error, attempts=MAX_ATTEMPTS
        )
        session.refresh(row)
    session.expunge(row)
    return row


def _run_claimed(
    services: Services,
    row: tables.JobRow,
    lease: str,
    runners: dict[str, JobRunner],
    stopping: Callable[[], bool],
) -> None:
    """Run the job, and log and count how this attempt ended."""
    started = time.monotonic()
    broken: DeviceBroken | None = None
    try:
        outcome = _run(services, row, lease, runners, stopping)
    except LeaseLost:
        outcome = "taken over"
    except DeviceBroken as stop:
        outcome, broken = stop.outcome, stop
    seconds = time.monotonic() - started
    log.info("%s job %s after %.2f s, attempt %d", row.kind, outcome, seconds, row.attempts)
    metrics.JOB_SECONDS.labels(row.kind, outcome).observe(seconds)
    if broken is not None:
        raise broken


def _run(
    services: Services,
    row: tables.JobRow,
    lease: str,
    runners: dict[str, JobRunner],
    stopping: Callable[[], bool],
) -> str:
    """Run a claimed job, record its end, and return the outcome as one word."""
    progress = Progress(services, row, lease, stopping)
    try:
        done = runners[row.kind](services, row, progress)
        _finish(services, lease, JobState.succeeded, done=done)
    except Cancelled:
        _finish(services, lease, JobState.cancelled)
        return "cancelled"
    except Requeued as stop:
        hand_back(services, lease, to_the_end=isinstance(stop, Yielded))
        return "handed back"
    except LeaseLost:
        raise
    except Exception as error:
        if is_device_failure(error):
            raise DeviceBroken(_leave_device(services, lease, progress)) from error
        return _end_failed(services, lease, progress, error)
    return "succeeded"


def hand_back(services: Services, lease: str, *, to_the_end: bool = False) -> None:
    """Return a job to its place in the queue, or to its end. The attempt does not count."""
    with services.db.transaction() as session:
        row = jobs.leased_job(session, lease)
        if row is None:
            return
        back: dict[str, Any] = {
            "state": JobState.queued,
            "lease": None,
            "attempts": row.attempts - 1,
        }
        if to_the_end:
            back["due_at"] = row_leases.database_now(session)
        jobs.change_leased(session, lease, **back)
    services.notify_workers()


def _leave_device(services: Services, lease: str, progress: Progress) -> str:
    """Queue the job for another process, or fail it after the last attempt; return the outcome."""
    log.exception("the job met a failure of the device %s", services.device)
    error = {
        "code": "device-failed",
        "detail": f"the device {services.device} failed while the job ran. The worker's log has "
        "the reason",
    }
    try:
        return _try_again(services, lease, error, start_over=progress.stuck)
    except (LeaseLost, DatabaseUnavailable):
        return "taken over"  # now, or when its lease ends


def _end_failed(services: Services, lease: str, progress: Progress, error: Exception) -> str:
    """Record an error of the runner, and return the outcome."""
    if isinstance(error, Unavailable):
        log.warning("%s: %s", error.code, error.detail)
        return _try_again(
            services,
            lease,
            {"code": error.code, "detail": error.detail},
            wait_s=error.retry_after_s or 0,
        )
    if isinstance(error, NoFurtherAttempt):
        error = error.error
    if isinstance(error, AnchorageError):
        _finish(services, lease, JobState.failed, error=problem_of(error))
        return "failed"
    log.error("the job failed by a fault of the service", exc_info=error)
    detail = "the service has failed. Its log has the reason"
    return _try_again(
        services, lease, {"code": "internal", "detail": detail}, start_over=progress.stuck
    )


def problem_of(error: AnchorageError) -> dict[str, Any]:
    """Return the problem document of an error that ends a job."""
    problem = {"code": error.code, "detail": error.detail, "field": None, **error.members()}
    document: dict[str, Any] = null_nonfinite(problem)
    return document


def _finish(
    services: Services,
    lease: str,
    state: JobState,
    *,
    done: JobResult | None = None,
    error: dict[str, Any] | None = None,
) -> None:
    """Record the end and what the job created, in one transaction, under the lease.

    Tries again while the database is away, until the lease may have ended.
    """
    deadline = time.monotonic() + services.lease_s
    while True:
        try:
            with services.db.transaction() as session:
                result = None if done is None else null_nonfinite(done.result)
                end = {
                    "state": state,
                    "finished_at": tables.now(),
                    "result": result,
                    "error": error,
                    "checkpoint": None,
                }
                if not jobs.change_leased(session, lease, **end):
                    raise LeaseLost
                if done is not None:
                    done.write(session)
        except DatabaseUnavailable:
            if time.monotonic() >= deadline:
                raise
            time.sleep(JOB_BACKOFF_S)
        else:
            services.names.forget()  # the job may have changed what a name means
            return


def _try_again(
    services: Services,
    lease: str,
    error: dict[str, Any],
    *,
    wait_s: float = 0.0,
    start_over: bool = False,
) -> str:
    """Queue the job again after a pause, or fail it after the last attempt.

    start_over  drop the checkpoint, which may be the cause
    """
    with services.db.transaction() as session:
        row = jobs.leased_job(session, lease)
    if row is None:
        raise LeaseLost
    if row.attempts >= MAX_ATTEMPTS:
        _finish(services, lease, JobState.failed, error=error)
        return "failed"
    pause_s = max(JOB_BACKOFF_S, wait_s) * 2 ** (row.attempts - 1)
    changes = {"state": JobState.queued, "lease": None, "error": error}
    with services.db.transaction() as session:
        due_at = row_leases.database_now(session) + timedelta(seconds=pause_s)
        checkpoint = None if start_over else row.checkpoint
        jobs.change_leased(session, lease, **changes, due_at=due_at, checkpoint=checkpoint)
    return "to be tried again"
