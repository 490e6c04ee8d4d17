"""Deletes old rows in batches, so that no other process waits long for their locks."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ColumnElement, delete, exists, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.storage.queries import set_versions
from app.storage.queries.statements import changed_rows
from app.storage.tables import (
    AuditRow,
    ContractRow,
    IdempotentRequestRow,
    JobRow,
    SpaceRow,
    TranslatorRow,
)

#: most rows of one statement
DELETE_BATCH = 500


def delete_jobs(session: Session, before: datetime) -> int:
    """Delete jobs that ended before then, at most DELETE_BATCH, and return their number."""
    return _delete(session, JobRow.id, JobRow.finished_at, before)


def delete_audit(session: Session, before: datetime) -> int:
    """Delete audit rows written before then, at most DELETE_BATCH, and return their number."""
    return _delete(session, AuditRow.id, AuditRow.created_at, before)


def delete_requests(session: Session, before: datetime) -> int:
    """Delete idempotent requests made before then, at most DELETE_BATCH; return their number."""
    return _delete(session, IdempotentRequestRow.id, IdempotentRequestRow.created_at, before)


def delete_translators(session: Session, before: datetime) -> int:
    """Delete translators last used before then, except those whose spaces have a contract.

    Deletes at most DELETE_BATCH and returns their number. The next use of such a translator fits it
    again with the same id.
    """
    contract = exists().where(
        ContractRow.source_id == TranslatorRow.source_id,
        ContractRow.target_id == TranslatorRow.target_id,
    )
    return _delete(session, TranslatorRow.id, TranslatorRow.used_at, before, ~contract)


def delete_replaced_spaces(session: Session, before: datetime) -> int:
    """Delete spaces of versions that were replaced before then and that no translator refers to.

    Deletes at most DELETE_BATCH and returns their number.
    """
    return _delete(
        session, SpaceRow.id, SpaceRow.created_at, before, set_versions.replaced_before(before)
    )


def _delete(
    session: Session,
    row_id: InstrumentedAttribute[str],
    moment: InstrumentedAttribute[datetime] | InstrumentedAttribute[datetime | None],
    before: datetime,
    *where: ColumnElement[bool],
) -> int:
    """Delete the oldest rows. Skips rows that another process is deleting."""
    old = select(row_id).where(moment < before, *where).order_by(moment).limit(DELETE_BATCH)
    found = session.scalars(old.with_for_update(skip_locked=True)).all()
    if not found:
        return 0
    return changed_rows(session, delete(row_id.class_).where(row_id.in_(found)))
