"""The lease of a migration: one job, step or synchronisation at a time works on its store.

It ends LEASE_S after it was last renewed. Only its holder writes `position` and `found`. Others
call `change`, which changes nothing if somebody else has changed the row since it was read.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, update
from sqlalchemy.orm import Session

from app.context import Services
from app.db import leases, tables
from app.db.session import changed_rows
from app.errors import DatabaseUnavailable, MigrationActive

log = logging.getLogger("anchorage.migration")

#: how long a lease lasts without a renewal, and how often it is renewed
LEASE_S = 15.0
LEASE_RENEWED_S = 4.0

#: the pause before a lease, or a database that is away, is tried again
LEASE_PAUSE_S = 0.1
AWAY_PAUSE_S = 0.5


class Lease:
    """A lease, which its context renews. `row` is the migration as last read or written."""

    def __init__(self, services: Services, row: tables.MigrationRow, token: str) -> None:
        self.row = row
        self._services = services
        self._token = token
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._ends = time.monotonic() + LEASE_S

    @property
    def position(self) -> dict[str, Any]:
        """Return a copy of the position."""
        return dict(self.row.position)

    def save(
        self,
        *,
        unchanged: tables.MigrationRow | None = None,
        within: Callable[[Session], object] = lambda session: None,
        **values: Any,
    ) -> None:
        """Write columns of the row, and what `within` adds, in one transaction under the lease.

        Tries again while the database is away, until the lease may have ended.
        Raises MigrationActive when the lease is lost, or when state or job are no longer those of
        `unchanged`, and DatabaseUnavailable.
        """
        with self._lock:
            while True:
                try:
                    if self._write(values, unchanged, within):
                        return
                except DatabaseUnavailable:
                    if time.monotonic() + AWAY_PAUSE_S >= self._ends:
                        raise
                    time.sleep(AWAY_PAUSE_S)

    def _write(
        self,
        values: dict[str, Any],
        unchanged: tables.MigrationRow | None,
        within: Callable[[Session], object],
    ) -> bool:
        ends = time.monotonic() + LEASE_S
        with self._services.db.transaction() as session:
            row = session.get(tables.MigrationRow, self.row.id, populate_existing=True)
            if row is None or row.lease != self._token:
                raise MigrationActive(
                    "Another step of the migration took over, because this one did not renew its "
                    "lease. Read the migration, and repeat the call if it is still needed."
                )
            if unchanged and (row.state, row.job_id) != (unchanged.state, unchanged.job_id):
                raise MigrationActive(
                    "The migration changed at the same time. Read it, and repeat the call if it "
                    "is still possible.",
                    retry_after_s=1,
                )
            until = leases.end_of_lease(session, LEASE_S)
            own = tables.MigrationRow.lease == self._token
            if not change(session, row, own, **values, lease_until=until):
                return False
            within(session)
            session.expire(row)
            session.refresh(row)
        self.row, self._ends = row, ends
        return True

    def renew_until_ended(self) -> None:
        """Renew the lease again and again, in a separate thread."""
        while not self._ended.wait(LEASE_RENEWED_S):
            try:
                self.save()
            except MigrationActive:
                return
            except DatabaseUnavailable as error:
                log.warning("the lease of migration %s is not renewed: %s", self.row.id, error)

    def end(self) -> None:
        """Give the lease up. Without the database, it ends by itself."""
        self._ended.set()
        try:
            with self._lock, self._services.db.transaction() as session:
                leases.release(session, tables.MigrationRow, self._token)
        except DatabaseUnavailable as error:
            log.warning("the lease of migration %s ends by itself: %s", self.row.id, error.detail)


@contextmanager
def take_lease(services: Services, migration_id: str, *, wait_s: float = 0.0) -> Iterator[Lease]:
    """Lease a migration inside this context, after waiting up to `wait_s` for another holder.

    Raises MigrationActive when another one still holds it.
    """
    held = _take(services, migration_id, time.monotonic() + wait_s)
    renewal = threading.Thread(target=held.renew_until_ended, name="renew a lease", daemon=True)
    renewal.start()
    try:
        yield held
    finally:
        held.end()


def _take(services: Services, migration_id: str, deadline: float) -> Lease:
    token = tables.new_id()
    while True:
        with services.db.transaction() as session:
            taken = leases.claim(session, tables.MigrationRow, migration_id, token, seconds=LEASE_S)
            row = session.get_one(tables.MigrationRow, migration_id, populate_existing=True)
        if taken:
            return Lease(services, row, token)
        if time.monotonic() >= deadline:
            raise MigrationActive(
                "A job, a step or a synchronisation works on this migration now. Wait until it "
                f"ends; if its process was killed, for {LEASE_S:.0f} s.",
                retry_after_s=5,
            )
        time.sleep(LEASE_PAUSE_S)


def change(
    session: Session, row: tables.MigrationRow, *where: ColumnElement[bool], **values: Any
) -> bool:
    """Update a row if it has not changed since it was read. Returns whether it was updated."""
    unchanged = (tables.MigrationRow.id == row.id, tables.MigrationRow.updated_at == row.updated_at)
    # Every change must move the time, also when two come within a microsecond.
    changed_at = max(tables.now(), row.updated_at + timedelta(microseconds=1))
    statement = update(tables.MigrationRow).where(*unchanged, *where)
    return changed_rows(session, statement.values(**values, updated_at=changed_at)) == 1
