"""Queries of aliases, and of what the one of a store depends on."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import and_, exists, or_, select
from sqlalchemy.orm import Session

from app.db.tables import AliasRow, AnchorSetRow, EncoderRow, MigrationRow, StoreRow


def alias(
    session: Session, project: str, name: str
) -> tuple[AliasRow, MigrationRow | None] | tuple[None, None]:
    """Return the alias of that name, and the active migration of its store; else None for each.

    An encoder of the same name hides it: two requests at the same moment can create both.
    One statement reads all, because `finish` changes the store and the migration together.
    """
    hidden = exists().where(EncoderRow.project == project, EncoderRow.name == name)
    is_active = and_(MigrationRow.store_id == AliasRow.store_id, MigrationRow.ended_at.is_(None))
    found = session.execute(
        select(AliasRow, MigrationRow)
        .outerjoin(MigrationRow, is_active)
        .where(AliasRow.project == project, AliasRow.name == name, ~hidden)
    ).one_or_none()
    return (None, None) if found is None else (found[0], found[1])


def names_of_stores(session: Session) -> Sequence[tuple[str, str]]:
    """Return the project and the name of each alias of a store, of all projects."""
    query = select(AliasRow.project, AliasRow.name).where(AliasRow.store_id.is_not(None))
    return [(project, name) for project, name in session.execute(query)]


def aliases_of(session: Session, row: EncoderRow | AnchorSetRow | StoreRow) -> list[str]:
    """Return the aliases whose model names an encoder or a set, or that follow a store."""
    columns = {
        EncoderRow: [AliasRow.encoder_id, AliasRow.target_id],
        AnchorSetRow: [AliasRow.anchor_set_id],
        StoreRow: [AliasRow.store_id],
    }
    names = session.scalars(
        select(AliasRow.name)
        .where(or_(*(column == row.id for column in columns[type(row)])))
        .order_by(AliasRow.name)
    ).all()
    return [f"the name {name!r}" for name in names]
