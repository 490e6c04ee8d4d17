"""Deletes old rows, at most BATCH in one statement: nobody waits long for its locks."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ColumnElement, delete, exists, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.storage.queries.statements import changed_rows
from app.storage.tables import Audit, Contract, IdempotentRequest, Job, Translator

#: rows in one statement
BATCH = 500


def delete_jobs(session: Session, before: datetime) -> int:
    """Delete jobs that ended before then; returns how many, BATCH at most."""
    return _delete(session, Job.id, Job.finished_at, before)


def delete_audit(session: Session, before: datetime) -> int:
    """Delete audit rows written before then; returns how many, BATCH at most."""
    return _delete(session, Audit.id, Audit.created_at, before)


def delete_requests(session: Session, before: datetime) -> int:
    """Delete idempotent requests made before then; returns how many, BATCH at most."""
    return _delete(session, IdempotentRequest.id, IdempotentRequest.created_at, before)


def delete_translators(session: Session, before: datetime) -> int:
    """Delete translators last used before then, but none between two spaces that have a contract.

    Returns how many, BATCH at most. What is deleted only says how a translator was fitted: the next
    use fits it again under the same id.
    """
    contract = exists().where(
        Contract.source_id == Translator.source_id, Contract.target_id == Translator.target_id
    )
    return _delete(session, Translator.id, Translator.used_at, before, ~contract)


def _delete(
    session: Session,
    row_id: InstrumentedAttribute[str],
    moment: InstrumentedAttribute[datetime] | InstrumentedAttribute[datetime | None],
    before: datetime,
    *where: ColumnElement[bool],
) -> int:
    """Delete the oldest rows; those that another process is just deleting are skipped."""
    old = select(row_id).where(moment < before, *where).order_by(moment).limit(BATCH)
    found = session.scalars(old.with_for_update(skip_locked=True)).all()
    if not found:
        return 0
    return changed_rows(session, delete(row_id.class_).where(row_id.in_(found)))
