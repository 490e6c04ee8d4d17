"""Queries of aliases."""

from __future__ import annotations

from sqlalchemy import exists, or_, select
from sqlalchemy.orm import Session

from app.db.tables import AliasRow, AnchorSetRow, EncoderRow


def alias(session: Session, project: str, name: str) -> AliasRow | None:
    """Return the alias of that name, or None. An encoder of the same name hides it.

    Two requests at the same moment can create both.
    """
    hidden = exists().where(EncoderRow.project == project, EncoderRow.name == name)
    return session.scalar(
        select(AliasRow).where(AliasRow.project == project, AliasRow.name == name, ~hidden)
    )


def aliases_of(session: Session, row: EncoderRow | AnchorSetRow) -> list[str]:
    """Return the aliases whose model names an encoder or a set, as 'alias a'."""
    columns = {
        EncoderRow: [AliasRow.encoder_id, AliasRow.target_id],
        AnchorSetRow: [AliasRow.anchor_set_id],
    }
    names = session.scalars(
        select(AliasRow.name)
        .where(or_(*(column == row.id for column in columns[type(row)])))
        .order_by(AliasRow.name)
    ).all()
    return [f"alias {name!r}" for name in names]
