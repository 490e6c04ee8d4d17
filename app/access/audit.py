"""The audit log: each write adds a row to it, in the transaction of the write."""

from __future__ import annotations

from sqlalchemy.orm import Session

from app.context import RequestContext
from app.db import tables


def record_audit(
    session: Session,
    context: RequestContext,
    action: str,
    resource: str,
    name: str,
) -> None:
    """Add the audit row of a write."""
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
