"""Queries of reindexings."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, exists, select, update
from sqlalchemy.orm import Session

from app.errors import ReindexingNotFound
from app.storage.queries.statements import changed_rows
from app.storage.tables import JobRow, ReindexingRow, StoreRow, now
from app.types import ReindexingState

#: the member of `position` that names a step, from before the store changes until the row has
#: changed
STEP = "step"


def reindexing(session: Session, project: str, reindexing_id: str) -> ReindexingRow:
    """Return a reindexing of the project. Raises ReindexingNotFound."""
    row = session.get(ReindexingRow, reindexing_id, populate_existing=True)
    if row is None or row.project != project:
        raise ReindexingNotFound(f"There is no reindexing {reindexing_id!r}.", field="id")
    return row


def reindexings(
    session: Session, project: str, *, store: str | None, before: datetime | None, limit: int
) -> Sequence[ReindexingRow]:
    """Return reindexings created before a moment, the newest first; of one store if it is named."""
    query = (
        select(ReindexingRow)
        .where(ReindexingRow.project == project)
        .order_by(ReindexingRow.created_at.desc(), ReindexingRow.id)
        .limit(limit)
    )
    if store is not None:
        named = select(StoreRow.id).where(StoreRow.project == project, StoreRow.name == store)
        query = query.where(ReindexingRow.store_id.in_(named))
    if before is not None:
        query = query.where(ReindexingRow.created_at < before)
    return session.scalars(query).all()


def change(
    session: Session, row: ReindexingRow, *where: ColumnElement[bool], **values: Any
) -> bool:
    """Update a row if it has not changed since it was read. Returns whether it was updated."""
    unchanged = (ReindexingRow.id == row.id, ReindexingRow.updated_at == row.updated_at)
    # Every change must move the time, also when two come within a microsecond.
    changed_at = max(now(), row.updated_at + timedelta(microseconds=1))
    statement = update(ReindexingRow).where(*unchanged, *where)
    return changed_rows(session, statement.values(**values, updated_at=changed_at)) == 1


def idle_in(session: Session, states: Collection[ReindexingState]) -> Sequence[ReindexingRow]:
    """Return the reindexings of all projects in these states that have no unfinished job."""
    busy = exists().where(JobRow.id == ReindexingRow.job_id, JobRow.finished_at.is_(None))
    query = select(ReindexingRow).where(
        ReindexingRow.ended_at.is_(None), ReindexingRow.state.in_(states), ~busy
    )
    return session.scalars(query.order_by(ReindexingRow.created_at)).all()


def unfinished_job(session: Session, row: ReindexingRow) -> JobRow | None:
    """Return the reindexing's last job while it waits or runs."""
    if row.job_id is None:
        return None
    job = session.get(JobRow, row.job_id, populate_existing=True)
    return job if job is not None and job.finished_at is None else None
