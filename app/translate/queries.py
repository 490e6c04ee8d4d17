"""SQL of translators."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from app.db.session import changed_rows
from app.db.tables import TranslatorRow
from app.errors import NotFound


def find(
    session: Session,
    project: str,
    content: str,
    *,
    between: tuple[str, str] | None = None,
) -> TranslatorRow:
    """Return the translator of that id, by default the oldest.

    between  row ids of its two spaces: anchor sets with equal embeddings have translators of one id
    """
    ours = (
        []
        if between is None
        else [TranslatorRow.source_id == between[0], TranslatorRow.target_id == between[1]]
    )
    wanted = select(TranslatorRow).where(
        TranslatorRow.project == project, TranslatorRow.content == content, *ours
    )
    oldest = wanted.order_by(TranslatorRow.created_at).limit(1)
    row = session.scalar(oldest)
    if row is None:
        raise NotFound(f"There is no translator {content!r}.", "translator", field="id")
    return row


def touch(session: Session, row: TranslatorRow, *, now: datetime) -> bool:
    """Record the use of a translator. Returns whether it has a row between these two spaces."""
    between = (TranslatorRow.source_id == row.source_id, TranslatorRow.target_id == row.target_id)
    ours = (TranslatorRow.project == row.project, TranslatorRow.content == row.content, *between)
    return changed_rows(session, update(TranslatorRow).where(*ours).values(used_at=now)) > 0
