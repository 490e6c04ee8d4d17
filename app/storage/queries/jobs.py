"""Queries of the queue: jobs that wait, and jobs that run under a lease.

A job is unfinished while `finished_at` is null. The partial indexes of the table hold these rows
only, so no query here becomes slower with the number of jobs that have ended.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, case, func, or_, select, update
from sqlalchemy.orm import Session

from app.storage.queries.statements import changed_rows
from app.storage.tables import Job
from app.types import JobState

UNFINISHED = Job.finished_at.is_(None)


def claim_next(
    session: Session, *, lease: str, now: datetime, until: datetime
) -> tuple[Job, bool] | None:
    """Take the job that has been due for longest, under `lease` until then; None when none is due.

    Returns the job and whether its last worker was lost. A job is due when it waits and its pause is
    over, or when it runs and its lease has ended. On PostgreSQL, rows that another worker is just
    taking are skipped. SQLite has no such locks; there the update repeats the conditions, and a
    worker that was slower looks for another job.
    """
    queued = Job.state == JobState.queued
    lost = (Job.state == JobState.running) & (Job.lease_until < now)
    due = (UNFINISHED, Job.due_at <= now, or_(queued, lost))
    oldest = select(Job).where(*due).order_by(Job.due_at).limit(1)
    while (row := session.scalar(oldest.with_for_update(skip_locked=True))) is not None:
        was_lost = row.state == JobState.running
        taken = change(
            session,
            Job.id == row.id,
            *due,
            state=JobState.running,
            lease=lease,
            lease_until=until,
            attempts=Job.attempts + 1,
            started_at=now,
        )
        if taken:
            session.refresh(row)
            return row, was_lost
    return None


def change(session: Session, *where: ColumnElement[bool], **values: Any) -> bool:
    """Change jobs in one statement and count their version up; returns whether there was one."""
    counted = {**values, "version": Job.version + 1}
    return changed_rows(session, update(Job).where(*where).values(counted)) > 0


def change_leased(session: Session, held: str, /, **values: Any) -> bool:
    """Change the job that runs under the lease `held`; returns whether there still is one."""
    return change(session, *_held(held), **values)


def keep_checkpoint(session: Session, held: str, digest: str, *, done: int) -> bool:
    """Name a running job's checkpoint at step `done`; returns whether the lease still holds.

    When the job was never this far, the tries of before are forgotten. Clients get no event: the
    version stays.
    """
    further = Job.furthest < done
    values = {
        "checkpoint": digest,
        "furthest": case((further, done), else_=Job.furthest),
        "attempts": case((further, 1), else_=Job.attempts),
    }
    return changed_rows(session, update(Job).where(*_held(held)).values(values)) > 0


def leased_job(session: Session, held: str) -> Job | None:
    """The job that runs under the lease."""
    return session.scalar(select(Job).where(*_held(held)))


def asked_to_stop(session: Session, held: str) -> bool | None:
    """Whether somebody cancelled the running job; None when the lease does not hold any more."""
    return session.scalar(select(Job.cancel_requested).where(*_held(held)))


def renew_leases(session: Session, leases: Collection[str], *, until: datetime) -> None:
    """Let these leases hold until then. Clients get no event: the version stays."""
    running = (UNFINISHED, Job.lease.in_(leases), Job.state == JobState.running)
    changed_rows(session, update(Job).where(*running).values(lease_until=until))


def cancel(session: Session, job_id: str, *, now: datetime) -> None:
    """Ask an unfinished job to stop; one that waits ends with that."""
    change(session, Job.id == job_id, UNFINISHED, cancel_requested=True)
    waits = (Job.id == job_id, Job.state == JobState.queued)
    change(session, *waits, state=JobState.cancelled, finished_at=now, checkpoint=None)


def count_unfinished(session: Session, project: str) -> tuple[int, int]:
    """How many jobs wait or run: of the project, and of all projects together."""
    ours = func.count().filter(Job.project == project)
    of_project, of_all = session.execute(select(ours, func.count()).where(UNFINISHED)).one()
    return of_project, of_all


def count_by_state(session: Session) -> dict[str, int]:
    """Unfinished jobs of all projects, by their two states."""
    counted = select(Job.state, func.count()).where(UNFINISHED).group_by(Job.state)
    found = {row[0]: row[1] for row in session.execute(counted)}
    return {state.value: found.get(state, 0) for state in JobState if not state.finished}


def oldest_queued(session: Session) -> datetime | None:
    """When the job that waits longest was submitted."""
    waits = (UNFINISHED, Job.state == JobState.queued)
    return session.scalar(select(func.min(Job.created_at)).where(*waits))


def unfinished(session: Session) -> Sequence[Job]:
    """Jobs of all projects that wait or run, in the order in which they became due."""
    return session.scalars(select(Job).where(UNFINISHED).order_by(Job.due_at)).all()


def _held(lease: str) -> tuple[ColumnElement[bool], ...]:
    return (UNFINISHED, Job.lease == lease, Job.state == JobState.running)
