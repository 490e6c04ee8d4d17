"""Submits and cancels jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy.orm import Session

from app.access.audit import record_audit
from app.context import RequestContext, Services
from app.db import leases, tables
from app.errors import JobFinished, QueueFull, TooManyJobs
from app.jobs import queries as jobs
from app.types import JobKind, JobState

#: most unfinished jobs of one project, and of all together
PROJECT_JOBS, JOBS = 1_000, 10_000


def submit_job(
    services: Services,
    context: RequestContext,
    kind: JobKind,
    arguments: dict[str, Any],
    *,
    begin: Callable[[Session, tables.JobRow], object] = lambda session, job: None,
) -> tables.JobRow:
    """Queue a job, and wake a worker.

    begin  changes other rows in the transaction that queues the job
    """
    row = tables.JobRow(
        project=context.project, kind=kind, state=JobState.queued, arguments=arguments, progress={}
    )
    with services.db.transaction() as session:
        own, total = jobs.count_unfinished(session, context.project)
        if own >= PROJECT_JOBS:
            raise TooManyJobs(
                f"This project has {PROJECT_JOBS} unfinished jobs, the most allowed. Wait "
                "for some to end, or cancel them.",
                retry_after_s=10,
                limit=PROJECT_JOBS,
            )
        if total >= JOBS:
            raise QueueFull(
                f"The queue holds {JOBS} unfinished jobs, the most allowed. Try again in 10 s.",
                retry_after_s=10,
                limit=JOBS,
            )
        row.created_at = row.due_at = leases.database_now(session)
        session.add(row)
        session.flush()
        begin(session, row)
        record_audit(session, context, "create", "job", row.id)
    services.notify_workers()
    return row


def cancel_job(services: Services, context: RequestContext, job_id: str) -> tables.JobRow:
    """Cancel a job: at once when it is queued, at its next step when it runs.

    Raises NotFound, JobFinished.
    """
    with services.db.transaction() as session:
        row = jobs.job(session, context.project, job_id)
        if JobState(row.state).finished:
            raise JobFinished(
                f"Job {job_id} has ended: it is {row.state}, and cannot be cancelled."
            )
        jobs.cancel(session, row.id, now=tables.now())
        record_audit(session, context, "cancel", "job", row.id)
        session.flush()
        session.refresh(row)
    return row
