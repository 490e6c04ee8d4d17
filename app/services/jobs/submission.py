"""Submits and cancels jobs."""

from __future__ import annotations

from typing import Any

from app.errors import (
    JobFinished,
    QueueFull,
    TooManyJobs,
)
from app.services.access.audit import record_audit
from app.services.context import Services
from app.services.request_context import RequestContext
from app.storage import tables
from app.storage.queries import jobs, resources
from app.types import JobKind, JobState


def submit_job(
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


def cancel_job(services: Services, context: RequestContext, job_id: str) -> tables.JobRow:
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
