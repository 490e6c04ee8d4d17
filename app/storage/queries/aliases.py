"""Queries of aliases: other names of models."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import and_, exists, or_, select
from sqlalchemy.orm import Session

from app.storage.tables import AliasRow, AnchorSetRow, EncoderRow, HeadRow


def alias(session: Session, project: str, name: str) -> AliasRow | None:
    """Return the alias of that name, or None. An encoder or head of the same name hides it.

    Two requests at the same moment can create both.
    """
    hidden = or_(
        *(
            exists().where(table.project == project, table.name == name)
            for table in (EncoderRow, HeadRow)
        )
    )
    return session.scalar(
        select(AliasRow).where(AliasRow.project == project, AliasRow.name == name, ~hidden)
    )


def embedding_aliases(session: Session, project: str, *, limit: int) -> Sequence[AliasRow]:
    """Return the aliases of models that make vectors, in the order of their names."""
    makes_vectors = and_(
        AliasRow.encoder_id.is_not(None),
        or_(AliasRow.anchor_set_id.is_(None), AliasRow.target_id.is_not(None)),
    )
    return session.scalars(
        select(AliasRow)
        .where(AliasRow.project == project, makes_vectors)
        .order_by(AliasRow.name)
        .limit(limit)
    ).all()


def aliases_of(session: Session, row: EncoderRow | HeadRow | AnchorSetRow) -> list[str]:
    """Return the aliases whose model names an encoder, a head or a set, as 'alias a'."""
    columns = {
        EncoderRow: [AliasRow.encoder_id, AliasRow.target_id],
        HeadRow: [AliasRow.head_id],
        AnchorSetRow: [AliasRow.anchor_set_id],
    }
    names = session.scalars(
        select(AliasRow.name)
        .where(or_(*(column == row.id for column in columns[type(row)])))
        .order_by(AliasRow.name)
    ).all()
    return [f"alias {name!r}" for name in names]
