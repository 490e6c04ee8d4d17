"""Queries of stores, and of the migrations that hold them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from app.db.resources import by_name
from app.db.tables import AnchorSetRow, EncoderRow, MigrationRow, StoreRow
from app.types import MigrationState


def active_migration(session: Session, store_row: StoreRow) -> MigrationRow | None:
    """Return the migration whose traces are in the store, or None."""
    return session.scalar(
        select(MigrationRow).where(
            MigrationRow.store_id == store_row.id, MigrationRow.ended_at.is_(None)
        )
    )


def moving_store(session: Session, project: str, name: str) -> tuple[StoreRow, MigrationRow | None]:
    """Return a store and its active migration, if it has one."""
    row = by_name(session, StoreRow, project, name)
    return row, active_migration(session, row)


def shown_encoders(session: Session, project: str) -> dict[str, str]:
    """Return the encoder whose vectors clients see, for each store that is cut over."""
    shown = select(MigrationRow.store_id, EncoderRow.name).join(MigrationRow.target)
    active = (MigrationRow.ended_at.is_(None), MigrationRow.state == MigrationState.cut_over)
    found = session.execute(shown.where(MigrationRow.project == project, *active))
    return {row.store_id: row.name for row in found}


def searched_store(
    session: Session, project: str, name: str, target: str
) -> tuple[StoreRow, MigrationRow | None, EncoderRow]:
    """Return a store, its active migration, and the encoder `target`."""
    row, moving = moving_store(session, project, name)
    return row, moving, by_name(session, EncoderRow, project, target, field="target")


def same_collection(session: Session, store_row: StoreRow) -> list[tuple[StoreRow, MigrationRow]]:
    """Return other stores of this kind and collection, of all projects, with their active
    migrations. Their addresses may differ.
    """
    found = session.execute(
        select(StoreRow, MigrationRow)
        .join(MigrationRow, MigrationRow.store_id == StoreRow.id)
        .where(
            StoreRow.id != store_row.id,
            StoreRow.kind == store_row.kind,
            StoreRow.collection == store_row.collection,
            MigrationRow.ended_at.is_(None),
        )
    )
    return [(store_found, migration) for store_found, migration in found]


def stores_of_encoder(session: Session, encoder: EncoderRow) -> list[str]:
    """Return what uses an encoder: 'store a', 'a migration of store b', an ended one too."""
    names = session.scalars(
        select(StoreRow.name).where(StoreRow.encoder_id == encoder.id).order_by(StoreRow.name)
    ).all()
    moved = _moved(session, MigrationRow.target_id == encoder.id)
    return [f"store {name!r}" for name in names] + [
        f"a migration of store {name!r}" for name in moved if name not in names
    ]


def stores_of_anchor_set(session: Session, anchor_set: AnchorSetRow) -> list[str]:
    """Return the migrations that use a set, as 'a migration of store b'."""
    moved = _moved(session, MigrationRow.anchor_set_id == anchor_set.id)
    return [f"a migration of store {name!r}" for name in moved]


def _moved(session: Session, where: ColumnElement[bool]) -> Sequence[str]:
    """Return the names of stores with such a migration."""
    return session.scalars(
        select(StoreRow.name)
        .join(MigrationRow, MigrationRow.store_id == StoreRow.id)
        .where(where)
        .distinct()
        .order_by(StoreRow.name)
    ).all()
