"""The audit log: each write adds a row to it, in the transaction of the write."""

from __future__ import annotations

from sqlalchemy.orm import Session

from app.errors import (
    Conflict,
)
from app.services.request_context import RequestContext
from app.storage import tables
from app.storage.queries import access


def record_audit(
    session: Session,
    context: RequestContext,
    action: str,
    resource: str,
    name: str,
    row: tables.Owned | None = None,
) -> None:
    """Add the audit row of a write; `row` is the resource that a request creates.

    Raises Conflict when another try of the same idempotent request has created it meanwhile.
    """
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
        if not access.settle_request(session, *context.claim, made=row.id):
            raise Conflict(
                "Another try of this request created the resource. Repeat the request to get it."
            )
