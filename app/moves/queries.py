"""Queries of migrations."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import exists, select, update
from sqlalchemy.orm import Session

from app.db.tables import JobRow, MigrationRow, StoreRow
from app.errors import NotFound
from app.types import MigrationState

#: the member of `position` that names a step, from before the store changes until the row has
#: changed
STEP = "step"

#: the member of `position` about the moments after a switch, when some clients still write vectors
#: of the other encoder: the `ids` that were translated, and `until` when clients may do so; 0 where
#: the store refused the switch
WINDOW = "window"

#: the member of `position` about a rollback that the store refused: the ids of rows that it has
#: translated, which are embedded after the next one
TRANSLATED_BACK = "translated_back"


def migration(
    session: Session, project: str, migration_id: str, *, lock: bool = False
) -> MigrationRow:
    """Return a migration of the project. With `lock`, only this transaction may change it."""
    if lock:  # SQLite, which has no FOR UPDATE, has one writer at a time
        same = {"updated_at": MigrationRow.updated_at}
        session.execute(update(MigrationRow).where(MigrationRow.id == migration_id).values(same))
    row = session.get(MigrationRow, migration_id, populate_existing=True)
    if row is None or row.project != project:
        raise NotFound(f"There is no migration {migration_id!r}.", "migration", field="id")
    return row


def migrations(
    session: Session, project: str, *, store: str | None, before: datetime | None, limit: int
) -> Sequence[MigrationRow]:
    """Return migrations created before a moment, the newest first; of one store if it is named."""
    query = (
        select(MigrationRow)
        .where(MigrationRow.project == project)
        .order_by(MigrationRow.created_at.desc(), MigrationRow.id)
        .limit(limit)
    )
    if store is not None:
        named = select(StoreRow.id).where(StoreRow.project == project, StoreRow.name == store)
        query = query.where(MigrationRow.store_id.in_(named))
    if before is not None:
        query = query.where(MigrationRow.created_at < before)
    return session.scalars(query).all()


def idle_in(session: Session, states: Collection[MigrationState]) -> Sequence[MigrationRow]:
    """Return the migrations of all projects in these states that have no unfinished job."""
    busy = exists().where(JobRow.id == MigrationRow.job_id, JobRow.finished_at.is_(None))
    query = select(MigrationRow).where(
        MigrationRow.ended_at.is_(None), MigrationRow.state.in_(states), ~busy
    )
    return session.scalars(query.order_by(MigrationRow.created_at)).all()


def unfinished_job(session: Session, row: MigrationRow) -> JobRow | None:
    """Return the migration's last job while it waits or runs."""
    if row.job_id is None:
        return None
    job = session.get(JobRow, row.job_id, populate_existing=True)
    return job if job is not None and job.finished_at is None else None
