"""The audit log: one row for each write, in the transaction of the write."""

from __future__ import annotations

from sqlalchemy.orm import Session

from app.errors import (
    Conflict,
)
from app.services.context import origin
from app.storage import tables
from app.storage.queries import access


def record_audit(
    session: Session,
    project: str,
    action: str,
    resource: str,
    name: str,
    row: tables.Owned | None = None,
) -> None:
    """Write the audit row; `row` is what a creating request made. Raises Conflict when another try made it meanwhile."""
    who = origin.get()
    session.add(
        tables.AuditRow(
            project=project,
            action=action,
            resource=resource,
            name=name,
            key_id=who.key_id,
            origin=who.text,
        )
    )
    if row is not None and who.claim is not None:
        session.flush()
        if not access.settle_request(session, *who.claim, made=row.id):
            raise Conflict("another try of this request was faster")
