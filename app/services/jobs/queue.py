"""Jobs: work that outlives a request. A job is a SQL row, and workers claim the rows that are due.

A worker claims a job by a lease, which it renews while it lives. Whatever it writes, it writes under that lease: progress, the
end, and with the end, in the same transaction, what the job made. So a job may run twice, when a worker is lost or thought lost,
but its effect happens once. A job that takes long keeps checkpoints, and goes on from the last one.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog
import torch
from safetensors import SafetensorError
from sqlalchemy.orm import Session
from torch import Tensor

from app.errors import (
    AnchorageError,
    BlobMissing,
    DatabaseUnavailable,
    JobFinished,
    QueueFull,
    StorageUnavailable,
    TooManyJobs,
    Unavailable,
)
from app.observability import metrics
from app.services.access.audit import record_audit
from app.services.context import Services
from app.services.jobs.leases import Leases, hand_back
from app.services.request_context import RequestContext
from app.storage import tables
from app.storage.queries import jobs, resources
from app.types import JobKind, JobState

log = logging.getLogger("anchorage.jobs")

#: progress is written at most this often
PROGRESS_EVERY_S = 0.25

#: a checkpoint is written at most this often, and takes at most this share of a job's time
CHECKPOINT_EVERY_S = 2.0
CHECKPOINT_SHARE = 0.1

#: how the tensors of a job's state are told from the others in its checkpoint
_STATE = "state."

#: a job whose worker is lost, or that fails by a fault of ours, is tried so many times without getting any further
ATTEMPTS = 5

#: after a failed try: this, or as long as the error says, doubled with each
BACKOFF_S = 1.0


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
    keep: Callable[[Session], object] = lambda session: None


class Progress:
    """What a running job tells of itself: how far it is, and where it stands. Here it learns that it should stop.

    Everything is recorded under the job's lease. A database or a disk that is away is no reason to stop.
    """

    def __init__(
        self, services: Services, job: tables.JobRow, lease: str, stopping: Callable[[], bool]
    ) -> None:
        self._services = services
        self._job_id = job.id
        self._lease = lease
        self._stopping = stopping
        self._told: dict[str, Any] = {}
        #: what a try before this one told last, for one that goes on from where that stood
        self._before = {
            name: value for name, value in job.progress.items() if name not in ("done", "total")
        }
        self._facts: dict[str, Any] = {}
        self._done = 0
        self._checkpoint = job.checkpoint
        self._asked_at = self._due_at = -math.inf
        #: the first checkpoint beyond this step is kept at once: with it the try has got further than any before
        self._beyond: float = job.furthest
        #: the last state that was not kept, and its step
        self._skipped: tuple[int, Mapping[str, Tensor]] | None = None
        #: this try began at a checkpoint, and has kept no other since
        self.stuck = False

    def __call__(self, done: int, total: int, extra: Mapping[str, Any] | None = None) -> None:
        """`done` steps of `total`, and what else a reader wants to know. Cheap: it may be called at every step and between.

        A step that tells less than the one before, because it is only a sign of life, takes nothing back.
        Raises HandedBack, Cancelled, LeaseLost.
        """
        if self._stopping():
            if self._skipped is not None:
                self._keep(*self._skipped)
            raise HandedBack
        self._done = max(done, self._done)
        self._facts.update(extra or {})
        now = finite({"done": self._done, "total": total, **self._facts})
        ended = done >= total and now != self._told
        if ended or time.monotonic() - self._asked_at >= PROGRESS_EVERY_S:
            self._asked_at = time.monotonic()
            self._tell(now)

    def checkpoint(self, done: int, state: Mapping[str, Tensor]) -> None:
        """Keep where the job stands after `done` steps, now and then: a later try goes on from the last one. Raises LeaseLost.

        The first state that is further on than in any try before is kept in any case, and the last one before a worker stops.
        """
        begun = time.monotonic()
        if not (done > self._beyond or begun >= self._due_at or self._stopping()):
            self._skipped = (done, state)
            return
        self._skipped = None
        if done > self._beyond:
            self._beyond = math.inf
        self._keep(done, state)
        now = time.monotonic()
        self._due_at = now + max(CHECKPOINT_EVERY_S, (now - begun) / CHECKPOINT_SHARE)

    def resume(self) -> dict[str, Tensor] | None:
        """The state that an earlier try kept last; None without one, or when it cannot be read: the job begins anew."""
        if self._checkpoint is None:
            return None
        try:
            kept = self._services.blobs.get(self._checkpoint)
        except (StorageUnavailable, BlobMissing, SafetensorError) as error:
            log.warning("the checkpoint cannot be read, the job begins anew: %s", error)
            return None
        self.stuck = True
        self._done, self._facts = int(kept["done"]), self._before
        return {
            name.removeprefix(_STATE): tensor
            for name, tensor in kept.items()
            if name.startswith(_STATE)
        }

    def _tell(self, now: dict[str, Any]) -> None:
        try:
            with self._services.db.transaction() as session:
                if now != self._told:
                    jobs.change_leased(session, self._lease, progress=now)
                asked = jobs.asked_to_stop(session, self._lease)
        except DatabaseUnavailable as error:
            log.warning("progress not recorded: %s", error.detail)
            return
        self._told = now
        if asked is None:
            raise LeaseLost
        if asked:
            raise Cancelled

    def _keep(self, done: int, state: Mapping[str, Tensor]) -> None:
        try:
            digest = self._services.blobs.put(self._named(done, state))
            if digest == self._checkpoint:
                return
            with self._services.db.transaction() as session:
                held = jobs.keep_checkpoint(session, self._lease, digest, done=done)
        except (StorageUnavailable, DatabaseUnavailable) as error:
            log.warning("checkpoint not kept: %s", error.detail)
            return
        if not held:
            raise LeaseLost
        if self._checkpoint is not None:
            self._services.blobs.remove(self._checkpoint)
        self._checkpoint, self.stuck = digest, False

    def _named(self, done: int, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The state, its step, and the job's id: no other row can ever name the same blob, so it may be deleted at once."""
        # Copies: what shares memory cannot be written.
        copies = {
            _STATE + name: tensor.detach().clone(memory_format=torch.contiguous_format)
            for name, tensor in state.items()
        }
        return {
            "job": torch.tensor(list(self._job_id.encode()), dtype=torch.uint8),
            "done": torch.tensor(done),
            **copies,
        }


Run = Callable[[Services, tables.JobRow, Progress], Done]


def submit(
    services: Services, context: RequestContext, kind: JobKind, arguments: dict[str, Any]
) -> tables.JobRow:
    """Write a queued job down, and wake a worker for it. Raises TooManyJobs, QueueFull."""
    limits = services.limits
    row = tables.JobRow(
        project=context.project, kind=kind, state=JobState.queued, arguments=arguments, progress={}
    )
    with services.db.transaction() as session:
        ours, all_projects = jobs.count_unfinished(session, context.project)
        if ours >= limits.project_jobs:
            raise TooManyJobs(
                f"this project has {limits.project_jobs} unfinished jobs, which is what is allowed",
                retry_after_s=10,
                limit=limits.project_jobs,
            )
        if all_projects >= limits.jobs:
            raise QueueFull("the queue is full; try again", retry_after_s=10, limit=limits.jobs)
        session.add(row)
        session.flush()
        record_audit(session, context, "create", "job", row.id, row)
    services.notify_workers()
    return row


def cancel(services: Services, context: RequestContext, job_id: str) -> tables.JobRow:
    """Ask a job to stop: at once when it still waits, at its next step when it runs. Raises JobNotFound, JobFinished."""
    with services.db.transaction() as session:
        row = resources.job(session, context.project, job_id)
        if JobState(row.state).finished:
            raise JobFinished(f"job {job_id} is {row.state} already: there is nothing to cancel")
        jobs.cancel(session, row.id, now=tables.now())
        record_audit(session, context, "cancel", "job", row.id)
        session.flush()
        session.refresh(row)
    return row


def run_next(
    services: Services,
    runners: dict[str, Run],
    leases: Leases,
    *,
    stopping: Callable[[], bool] = lambda: False,
) -> bool:
    """A worker's turn: claim the next job that is due, run it, record how it ended.

    Returns whether there was a job. When `stopping()` turns true the job is handed back at its next
    step, and the try does not count. Raises DatabaseUnavailable.
    """
    lease = tables.new_id()
    with leases.hold(lease):
        with services.db.transaction() as session:
            row = _claim(session, lease, leases.until())
        if row is None:
            return False
        if row.state == JobState.running:
            with structlog.contextvars.bound_contextvars(job_id=row.id):
                _run_claimed(services, row, lease, runners, stopping)
        return True


def _claim(session: Session, lease: str, until: datetime) -> tables.JobRow | None:
    """The next job, which ends at once when it was cancelled or has lost too many workers."""
    now = tables.now()
    claimed = jobs.claim_next(session, lease=lease, now=now, until=until)
    if claimed is None:
        return None
    row, was_lost = claimed
    if was_lost:
        metrics.REQUEUED_JOBS.inc()
        log.warning("job %s is taken up again: its worker gave no sign of life", row.id)
    end: dict[str, Any] = {"finished_at": now, "checkpoint": None}
    if row.cancel_requested:
        jobs.change_leased(session, lease, **end, state=JobState.cancelled)
        session.refresh(row)
    elif row.attempts > ATTEMPTS:
        where = f" after step {row.furthest}" if row.furthest else ""
        error = {
            "code": "attempts-exhausted",
            "detail": f"its worker was lost {ATTEMPTS} times{where}",
        }
        jobs.change_leased(
            session, lease, **end, state=JobState.failed, error=error, attempts=ATTEMPTS
        )
        session.refresh(row)
    session.expunge(row)
    return row


def _run_claimed(
    services: Services,
    row: tables.JobRow,
    lease: str,
    runners: dict[str, Run],
    stopping: Callable[[], bool],
) -> None:
    """Run the job, and log and count how this try ended."""
    started = time.monotonic()
    try:
        outcome = _run(services, row, lease, runners, stopping)
    except LeaseLost:
        outcome = "taken over"
    seconds = time.monotonic() - started
    log.info("%s job %s after %.2f s, attempt %d", row.kind, outcome, seconds, row.attempts)
    metrics.JOB_SECONDS.labels(row.kind, outcome).observe(seconds)


def _run(
    services: Services,
    row: tables.JobRow,
    lease: str,
    runners: dict[str, Run],
    stopping: Callable[[], bool],
) -> str:
    """Run a claimed job and record its end; returns how it ended, in a word. Raises LeaseLost."""
    progress = Progress(services, row, lease, stopping)
    try:
        done = runners[row.kind](services, row, progress)
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
        return _try_again(
            services,
            lease,
            {"code": error.code, "detail": error.detail},
            wait_s=error.retry_after_s or 0,
        )
    except AnchorageError as error:
        told = {"code": error.code, "detail": error.detail, "field": None, **error.members()}
        _finish(services, lease, JobState.failed, error=finite(told))
        return "failed"
    except Exception:
        log.exception("a fault of the service")
        detail = "the job failed by a fault of the service; its log has the reason"
        return _try_again(
            services, lease, {"code": "internal", "detail": detail}, anew=progress.stuck
        )
    return "succeeded"


def _finish(
    services: Services,
    lease: str,
    state: JobState,
    *,
    done: Done | None = None,
    error: dict[str, Any] | None = None,
) -> None:
    """Record the end, and with it what the job made: together, and only under a lease that still holds. Raises LeaseLost.

    A database that is away is tried for as long as the lease can be trusted to hold.
    """
    deadline = time.monotonic() + services.lease_s
    while True:
        try:
            with services.db.transaction() as session:
                result = None if done is None else finite(done.result)
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
                    done.keep(session)
        except DatabaseUnavailable:
            if time.monotonic() >= deadline:
                raise
            time.sleep(BACKOFF_S)
        else:
            return


def _try_again(
    services: Services,
    lease: str,
    error: dict[str, Any],
    *,
    wait_s: float = 0.0,
    anew: bool = False,
) -> str:
    """After a try that failed for a reason that may pass: wait and queue again, longer each time, or after the last one, end.

    anew: without the checkpoint, which may be what does not work. Raises LeaseLost.
    """
    with services.db.transaction() as session:
        row = jobs.leased_job(session, lease)
    if row is None:
        raise LeaseLost
    if row.attempts >= ATTEMPTS:
        _finish(services, lease, JobState.failed, error=error)
        return "failed"
    pause_s = max(BACKOFF_S, wait_s) * 2 ** (row.attempts - 1)
    due_at = tables.now() + timedelta(seconds=pause_s)
    again = {"state": JobState.queued, "lease": None, "due_at": due_at, "error": error}
    with services.db.transaction() as session:
        jobs.change_leased(session, lease, **again, checkpoint=None if anew else row.checkpoint)
    return "to be tried again"


def finite(value: Any) -> Any:
    """The same, where JSON has no word for it None: no number, or one without end."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return value
