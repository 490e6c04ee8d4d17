"""Deletes old rows and blobs: ended jobs, audit rows, unused translators, idempotent requests."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from app.services.context import Services
from app.services.upkeep import blob_sweep
from app.storage import tables
from app.storage.queries import retention

log = logging.getLogger("anchorage.retention")

#: how long a repeated idempotent request is recognised
REQUESTS_DAYS = 1

#: how long requests may still use a version of an anchor set that was replaced
REPLACED_DAYS = 1

#: the last use of a translator is written once a day, so its days count from the next one
TOUCH_DAYS = 1


def delete_old(services: Services, *, stopping: Callable[[], bool] = lambda: False) -> None:
    """Delete old rows, each batch in its own transaction, and then blobs that no row names.

    Stops after the current batch when `stopping()` turns true. Raises DatabaseUnavailable.
    """
    days = services.retention
    unused_days = days.translators_days and days.translators_days + TOUCH_DAYS
    _delete(services, "jobs", retention.delete_jobs, days.jobs_days, stopping)
    _delete(services, "audit rows", retention.delete_audit, days.audit_days, stopping)
    _delete(services, "translators", retention.delete_translators, unused_days, stopping)
    _delete(services, "replaced spaces", retention.delete_replaced_spaces, REPLACED_DAYS, stopping)
    _delete(services, "requests", retention.delete_requests, REQUESTS_DAYS, stopping)
    if not stopping() and (deleted := blob_sweep.sweep_blobs(services)):
        log.info("deleted %d blobs that no row names", deleted)


def _delete(
    services: Services,
    what: str,
    delete_batch: Callable[[Session, datetime], int],
    days: int,
    stopping: Callable[[], bool],
) -> None:
    if days == 0:
        return
    before = tables.now() - timedelta(days=days)
    total, batch = 0, retention.DELETE_BATCH
    while batch == retention.DELETE_BATCH and not stopping():
        with services.db.transaction() as session:
            batch = delete_batch(session, before)
        total += batch
    if total:
        log.info("deleted %d %s older than %d days", total, what, days)
