"""Deletes old rows and blobs: ended jobs, audit rows and unused translators."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta

from sqlalchemy import delete, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.context import Services
from app.db import tables
from app.db.session import changed_rows
from app.jobs import queries as jobs
from app.search import queries as native_vectors

log = logging.getLogger("anchorage.retention")

#: most rows of one statement, so that no other process waits long for their locks
DELETE_BATCH = 500

#: the last use of a translator is written once a day, so its days count from the next one
TOUCH_DAYS = 1

#: days after the end of a job, after the write that an audit row records, and after the last use
#: of a translator
JOBS_DAYS, AUDIT_DAYS, TRANSLATORS_DAYS = 30, 365, 90

#: bytes of stored native vectors, above which the oldest are deleted
NATIVE_BYTES = 2**30

Moment = InstrumentedAttribute[datetime] | InstrumentedAttribute[datetime | None]


def delete_old(services: Services, *, stopping: Callable[[], bool] = lambda: False) -> None:
    """Delete old rows, each batch in its own transaction, and then blobs that no row names.

    The next use of a deleted translator fits it again.
    Stops after the current batch when `stopping()` turns true. Raises DatabaseUnavailable.
    """

    def clear(what: str, moment: Moment, days: int) -> None:
        before = tables.now() - timedelta(days=days)
        total, batch = 0, DELETE_BATCH
        while batch == DELETE_BATCH and not stopping():
            with services.db.transaction() as session:
                batch = _delete_batch(session, moment, before)
            total += batch
        if total:
            log.info("deleted %d %s older than %d days", total, what, days)

    clear("jobs", tables.JobRow.finished_at, JOBS_DAYS)
    clear("audit rows", tables.AuditRow.created_at, AUDIT_DAYS)
    clear("translators", tables.TranslatorRow.used_at, TRANSLATORS_DAYS + TOUCH_DAYS)
    delete_native_vectors(services, stopping)
    if not stopping() and (deleted := sweep_blobs(services)):
        log.info("deleted %d blobs that no row names", deleted)


def delete_native_vectors(services: Services, stopping: Callable[[], bool]) -> None:
    """Delete the native vectors that were made first, if all take too much space."""
    with services.db.transaction() as session:
        spare = native_vectors.spare_vectors(session, NATIVE_BYTES)
    if spare:
        log.info("about %d native vectors are too many", spare)
    while spare > 0 and not stopping():
        with services.db.transaction() as session:
            deleted = native_vectors.delete_oldest(session, min(spare, DELETE_BATCH))
        spare = spare - deleted if deleted else 0


def sweep_blobs(services: Services) -> int:
    """Delete old blobs that no row names, and return their number."""
    with services.db.transaction() as session:
        names = named_blobs(session)
    return services.blobs.sweep(names)


def _delete_batch(session: Session, moment: Moment, before: datetime) -> int:
    """Delete the oldest rows, at most DELETE_BATCH. Skips rows that another process deletes."""
    table = moment.class_
    old = select(table.id).where(moment < before).order_by(moment).limit(DELETE_BATCH)
    found = session.scalars(old.with_for_update(skip_locked=True)).all()
    return changed_rows(session, delete(table).where(table.id.in_(found))) if found else 0


def named_blobs(session: Session) -> set[str]:
    """Return every content hash that a row names."""
    columns = (
        tables.SpaceRow.blob,
        tables.SpaceRow.sample,
        tables.AnchorSetRow.inputs,
        tables.AnchorSetRow.store_rows,
        tables.TranslatorRow.weights,
        tables.HeadRow.blob,
        tables.MigrationRow.maps,
    )
    named = {
        digest
        for column in columns
        for digest in session.scalars(select(column).distinct())
        if digest is not None
    }
    pools = session.scalars(select(tables.PoolRow.pieces))
    named |= {piece["blob"] for pieces in pools for piece in pieces}
    for row in jobs.unfinished(session):
        for held in row.arguments.get("blobs", {}).values():
            named |= {held} if isinstance(held, str) else set(held)
        if row.checkpoint is not None:
            named.add(row.checkpoint)
    return named
