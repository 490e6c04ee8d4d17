"""The audit log: one row for each write, in the transaction of the write."""

from __future__ import annotations

from sqlalchemy.orm import Session

from app.errors import (
    Conflict,
)
from app.services.request_context import RequestContext
from app.storage import tables
from app.storage.queries import resources


def record_audit(
    session: Session,
    context: RequestContext,
    action: str,
    resource: str,
    name: str,
    row: tables.Owned | None = None,
) -> None:
    """Write the audit row; `row` is what a creating request made. Raises Conflict when another try made it meanwhile."""
    session.add(
        tables.AuditRow(
            project=context.project,
            action=action,
            resource=resource,
            name=name,
            key_id=context.key_id,
            origin=context.origin,
        )
    )
    if row is not None and context.claim is not None:
        session.flush()
        if not resources.settle_request(session, *context.claim, made=row.id):
            raise Conflict("another try of this request was faster")
