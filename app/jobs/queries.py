"""Queries of the job queue: jobs that wait, and jobs that run under a lease.

A job is unfinished while `finished_at` is null. The partial indexes hold unfinished jobs only, so
finished jobs do not slow these queries down.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Select, case, exists, func, or_, select, update
from sqlalchemy.orm import Session, aliased, defer

from app.db import leases
from app.db.session import changed_rows
from app.db.tables import JobRow
from app.errors import NotFound
from app.types import JobKind, JobState

UNFINISHED = JobRow.finished_at.is_(None)

#: most evaluations of a pair among which one with judgements is looked for
MAX_EVALUATIONS = 20


def claim_next(session: Session, *, lease: str, seconds: float) -> tuple[JobRow, bool] | None:
    """Claim the next job, under `lease`. None if no job is due.

    The projects take turns: the one with the fewest running jobs, and of those the one whose last
    job started longest ago. Of its jobs, the one that has been due longest.

    Returns the job and whether its last worker was lost. A job is due when it waits and its pause
    is over, or when it runs and its lease has expired. PostgreSQL skips rows that another worker
    is claiming. SQLite has no row locks: the update repeats the conditions, and the slower of two
    workers tries another job.
    """
    now = leases.database_now(session)
    queued = JobRow.state == JobState.queued
    lost = (JobRow.state == JobState.running) & (JobRow.lease_until < now)
    due = [UNFINISHED, JobRow.due_at <= now, or_(queued, lost)]
    for project in session.scalars(_projects_in_turn(*due)).all():
        of_project = (*due, JobRow.project == project)
        oldest = select(JobRow).where(*of_project).order_by(JobRow.due_at).limit(1)
        while (row := session.scalar(oldest.with_for_update(skip_locked=True))) is not None:
            was_lost = row.state == JobState.running
            taken = change(
                session,
                JobRow.id == row.id,
                *due,
                state=JobState.running,
                lease=lease,
                lease_until=now + timedelta(seconds=seconds),
                attempts=JobRow.attempts + 1,
                started_at=now,
            )
            if taken:
                session.refresh(row)
                return row, was_lost
    return None


def _projects_in_turn(*due: ColumnElement[bool]) -> Select[tuple[str]]:
    """The projects with due jobs, the one whose turn it is first."""
    waiting = select(JobRow.project, func.min(JobRow.due_at).label("due_at")).where(*due)
    projects = waiting.group_by(JobRow.project).subquery()
    others = aliased(JobRow)
    running = (
        select(func.count())
        .where(others.finished_at.is_(None), others.lease.is_not(None))
        .where(others.project == projects.c.project, others.state == JobState.running)
        .scalar_subquery()
    )
    served = select(func.max(others.started_at)).where(others.project == projects.c.project)
    last = served.scalar_subquery()
    return select(projects.c.project).order_by(running, last.nulls_first(), projects.c.due_at)


def change(session: Session, *where: ColumnElement[bool], **values: Any) -> bool:
    """Update jobs and increment their version. Returns whether any job matched."""
    counted = {**values, "version": JobRow.version + 1}
    return changed_rows(session, update(JobRow).where(*where).values(counted)) > 0


def change_leased(session: Session, lease: str, /, **values: Any) -> bool:
    """Update the job that runs under `lease`. Returns whether the lease is still valid."""
    return change(session, *_under(lease), **values)


def keep_checkpoint(session: Session, lease: str, digest: str, *, done: int) -> bool:
    """Record the checkpoint of a running job at step `done`. Returns whether its lease is valid.

    If the job was never this far, its attempts are counted from one again. The version does not
    change, because clients see none of it.
    """
    further = JobRow.furthest < done
    values = {
        "checkpoint": digest,
        "furthest": case((further, done), else_=JobRow.furthest),
        "attempts": case((further, 1), else_=JobRow.attempts),
    }
    return changed_rows(session, update(JobRow).where(*_under(lease)).values(values)) > 0


def leased_job(session: Session, lease: str) -> JobRow | None:
    """Return the job that runs under the lease, or None."""
    return session.scalar(select(JobRow).where(*_under(lease)))


def asked_to_stop(session: Session, lease: str) -> bool | None:
    """Return whether the running job was cancelled, or None when the lease is no longer valid."""
    return session.scalar(select(JobRow.cancel_requested).where(*_under(lease)))


def others_wait(session: Session, job_id: str) -> bool:
    """Return whether another job could be claimed now."""
    now = leases.database_now(session)
    waits = (UNFINISHED, JobRow.state == JobState.queued, JobRow.due_at <= now)
    return bool(session.scalar(select(exists().where(*waits, JobRow.id != job_id))))


def renew_leases(session: Session, held: Collection[str], *, seconds: float) -> None:
    """Extend these leases. The version does not change, because clients see none of it."""
    leases.renew(
        session, JobRow, held, UNFINISHED, JobRow.state == JobState.running, seconds=seconds
    )


def cancel(session: Session, job_id: str, *, now: datetime) -> None:
    """Ask an unfinished job to stop. A job that waits ends at once."""
    change(session, JobRow.id == job_id, UNFINISHED, cancel_requested=True)
    waits = (JobRow.id == job_id, JobRow.state == JobState.queued)
    change(session, *waits, state=JobState.cancelled, finished_at=now, checkpoint=None)


def count_unfinished(session: Session, project: str) -> tuple[int, int]:
    """Return the number of unfinished jobs of the project, and of all projects."""
    ours = func.count().filter(JobRow.project == project)
    of_project, of_all = session.execute(select(ours, func.count()).where(UNFINISHED)).one()
    return of_project, of_all


def count_by_state(session: Session) -> dict[str, int]:
    """Return the number of unfinished jobs of all projects by state."""
    counted = select(JobRow.state, func.count()).where(UNFINISHED).group_by(JobRow.state)
    found = {row[0]: row[1] for row in session.execute(counted)}
    return {state.value: found.get(state, 0) for state in JobState if not state.finished}


def oldest_queued(session: Session) -> datetime | None:
    """Return when the job that waits longest was submitted, or None."""
    waits = (UNFINISHED, JobRow.state == JobState.queued)
    return session.scalar(select(func.min(JobRow.created_at)).where(*waits))


def newest_fit(session: Session, project: str, key: str, *, since: datetime) -> JobRow | None:
    """Return the newest job that makes this fit, unfinished or ended after `since`, or None."""
    query = (
        select(JobRow)
        .where(
            JobRow.project == project,
            JobRow.kind == JobKind.fit,
            or_(UNFINISHED, JobRow.finished_at > since),
            JobRow.arguments["key"].as_string() == key,
        )
        .order_by(JobRow.created_at.desc())
        .limit(1)
    )
    return session.scalar(query)


def count_fits(session: Session, project: str) -> int:
    """Return the number of unfinished fits of the project."""
    query = select(func.count()).where(
        UNFINISHED, JobRow.project == project, JobRow.kind == JobKind.fit
    )
    return session.scalar(query) or 0


def newest_judged(
    session: Session, project: str, *, source: str, target: str, anchor_set: str
) -> str | None:
    """Return the id of the newest finished evaluation of judgements for a pair, or None."""
    result = JobRow.result
    pair = {"source": source, "target": target, "anchor_set": anchor_set}
    query = (
        select(JobRow.id, result["queries"])
        .where(
            JobRow.project == project,
            JobRow.kind == JobKind.evaluate,
            JobRow.state == JobState.succeeded,
            *(result[member].as_string() == name for member, name in pair.items()),
        )
        .order_by(JobRow.created_at.desc())
        .limit(MAX_EVALUATIONS)
    )
    judged = (job_id for job_id, queries in session.execute(query) if queries)
    return next(judged, None)


def unfinished(session: Session) -> Sequence[JobRow]:
    """Return the unfinished jobs of all projects in the order in which they became due."""
    return session.scalars(select(JobRow).where(UNFINISHED).order_by(JobRow.due_at)).all()


def _under(lease: str) -> tuple[ColumnElement[bool], ...]:
    return (UNFINISHED, JobRow.lease == lease, JobRow.state == JobState.running)


def job(session: Session, project: str, job_id: str) -> JobRow:
    """Return the job."""
    row = session.scalar(select(JobRow).where(JobRow.project == project, JobRow.id == job_id))
    if row is None:
        raise NotFound(f"There is no job {job_id!r}.", "job", field="id")
    return row


def jobs(
    session: Session,
    project: str,
    *,
    state: JobState | None,
    before: datetime | None,
    limit: int,
) -> Sequence[JobRow]:
    """Return jobs created before a moment, the newest first, without arguments and results."""
    query = (
        select(JobRow)
        .where(JobRow.project == project)
        .order_by(JobRow.created_at.desc(), JobRow.id)
        .limit(limit)
        .options(defer(JobRow.arguments), defer(JobRow.result))
    )
    if state is not None:
        query = query.where(JobRow.state == state)
    if before is not None:
        query = query.where(JobRow.created_at < before)
    return session.scalars(query).all()
