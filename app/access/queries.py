"""Queries of API keys."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import exists, or_, select, update
from sqlalchemy.orm import Session

from app.db.session import changed_rows
from app.db.tables import ApiKeyRow
from app.errors import NotFound


def api_key(session: Session, project: str | None, key_id: str, *, lock: bool = False) -> ApiKeyRow:
    """Return a key of the project, or of any project if it is None.

    `lock` locks the row until the transaction ends.
    """
    query = select(ApiKeyRow).where(ApiKeyRow.id == key_id)
    if project is not None:
        query = query.where(ApiKeyRow.project == project)
    row = session.scalar(query.with_for_update() if lock else query)
    if row is None:
        raise NotFound(f"There is no API key {key_id!r}.", "api-key", field="id")
    return row


def api_keys(session: Session, project: str | None = None) -> Sequence[ApiKeyRow]:
    """Return the keys of one project, or of all, in the order of their creation."""
    query = select(ApiKeyRow).order_by(ApiKeyRow.created_at, ApiKeyRow.id)
    return session.scalars(
        query if project is None else query.where(ApiKeyRow.project == project)
    ).all()


def has_usable_key(session: Session, *, now: datetime) -> bool:
    usable = exists().where(
        ApiKeyRow.revoked_at.is_(None),
        or_(ApiKeyRow.expires_at.is_(None), ApiKeyRow.expires_at > now),
    )
    return bool(session.scalar(select(usable)))


def touch_key(session: Session, key_id: str, *, now: datetime) -> None:
    changed_rows(session, update(ApiKeyRow).where(ApiKeyRow.id == key_id).values(last_used_at=now))
