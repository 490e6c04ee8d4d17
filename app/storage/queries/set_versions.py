"""Queries about versions of anchor sets: an append replaces all spaces of a set."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ColumnElement, delete, exists, select, update
from sqlalchemy.orm import Session, aliased

from app.storage.queries.resources import whole_set
from app.storage.tables import AnchorSetRow, SpaceRow, TranslatorRow


def lock_anchor_set(
    session: Session, project: str, name: str, *, field: str = "name"
) -> AnchorSetRow:
    """Return a set that no other request changes until the transaction ends, as it is now.

    SQLite has no locks of rows: the update makes other writers wait.
    """
    named = (AnchorSetRow.project == project, AnchorSetRow.name == name)
    session.execute(update(AnchorSetRow).where(*named).values(version=AnchorSetRow.version))
    session.expire_all()
    return whole_set(session, project, name, field=field)


def roles_of(session: Session, set_id: str) -> list[str] | None:
    """Return the roles of a set's items; None without roles, or once the set is deleted."""
    return session.scalar(select(AnchorSetRow.roles).where(AnchorSetRow.id == set_id))


def replaced_before(moment: datetime) -> ColumnElement[bool]:
    """Return whether a space was replaced before then, and no translator refers to it."""
    newer = aliased(SpaceRow)
    replaced = exists().where(
        newer.anchor_set_id == SpaceRow.anchor_set_id,
        newer.encoder_id == SpaceRow.encoder_id,
        newer.version > SpaceRow.version,
        newer.created_at < moment,
    )
    return replaced & _without_translators()


def delete_replaced(session: Session, row: AnchorSetRow) -> None:
    """Delete the spaces of the set's earlier versions that no translator refers to."""
    earlier = (SpaceRow.anchor_set_id == row.id, SpaceRow.version < row.version)
    statement = delete(SpaceRow).where(*earlier, _without_translators())
    session.execute(statement, execution_options={"synchronize_session": False})


def _without_translators() -> ColumnElement[bool]:
    """Return whether no translator refers to a space."""
    return ~exists().where(
        (TranslatorRow.source_id == SpaceRow.id) | (TranslatorRow.target_id == SpaceRow.id)
    )
