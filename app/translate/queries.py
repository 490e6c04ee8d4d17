"""SQL of translators."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import and_, exists, or_, select, update
from sqlalchemy.orm import Session, aliased, defer

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


def page(session: Session, project: str, *, after: str, limit: int) -> Sequence[TranslatorRow]:
    """Translators in the order of their ids, those after the id `after`: the oldest row of each id.

    Leaves out their reports.
    """
    older = aliased(TranslatorRow)
    is_oldest = ~exists().where(
        older.project == TranslatorRow.project,
        older.content == TranslatorRow.content,
        or_(
            older.created_at < TranslatorRow.created_at,
            and_(older.created_at == TranslatorRow.created_at, older.id < TranslatorRow.id),
        ),
    )
    query = (
        select(TranslatorRow)
        .where(TranslatorRow.project == project, TranslatorRow.content > after, is_oldest)
        .order_by(TranslatorRow.content)
        .limit(limit)
    )
    return session.scalars(query.options(defer(TranslatorRow.report))).all()


def touch(session: Session, row: TranslatorRow, *, now: datetime) -> bool:
    """Record the use of a translator. Returns whether it has a row between these two spaces."""
    between = (TranslatorRow.source_id == row.source_id, TranslatorRow.target_id == row.target_id)
    ours = (TranslatorRow.project == row.project, TranslatorRow.content == row.content, *between)
    return changed_rows(session, update(TranslatorRow).where(*ours).values(used_at=now)) > 0
