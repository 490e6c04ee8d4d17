"""Leases of rows: a token, and when it ends by the clock of the database.

One worker or step at a time works on a row, and only it writes under its token. All
machines share the database's clock, so theirs may differ. A lost process loses its leases when
they end.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, func, or_, select, update
from sqlalchemy.orm import Session

from app.db.session import changed_rows
from app.db.tables import JobRow, MigrationRow, now

Leased = type[JobRow] | type[MigrationRow]


def database_now(session: Session) -> datetime:
    """Return the time by the clock of the database. One machine alone uses a SQLite file."""
    if session.get_bind().dialect.name == "sqlite":
        return now()
    found: datetime = session.execute(select(func.clock_timestamp())).scalar_one()
    return found


def end_of_lease(session: Session, seconds: float) -> datetime:
    """Return when a lease of that length ends if it begins now."""
    return database_now(session) + timedelta(seconds=seconds)


def claim(
    session: Session,
    table: Leased,
    row_id: str,
    lease: str,
    *,
    seconds: float,
) -> bool:
    """Lease a row unless another lease still holds it. Returns whether it was free."""
    free = or_(table.lease.is_(None), table.lease_until < database_now(session))
    values = {"lease": lease, "lease_until": end_of_lease(session, seconds)}
    statement = update(table).where(table.id == row_id, free).values(values)
    return changed_rows(session, statement) == 1


def renew(
    session: Session,
    table: Leased,
    leases: Collection[str],
    *where: ColumnElement[bool],
    seconds: float,
) -> int:
    """Extend leases, and return the number of rows that they hold."""
    statement = update(table).where(table.lease.in_(leases), *where)
    until = end_of_lease(session, seconds)
    return changed_rows(session, statement.values(lease_until=until))


def release(session: Session, table: Leased, lease: str) -> None:
    """End a lease."""
    ended = {"lease": None, "lease_until": None}
    changed_rows(session, update(table).where(table.lease == lease).values(ended))
