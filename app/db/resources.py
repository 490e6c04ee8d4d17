"""Queries of resources: encoders, sets, pools, heads, names, translators, jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

from sqlalchemy import Select, delete, exists, or_, select, update
from sqlalchemy.orm import Session, contains_eager, joinedload, undefer
from sqlalchemy.orm.attributes import set_committed_value
from sqlalchemy.sql.base import ExecutableOption as ORMOption

from app.db.session import changed_rows
from app.db.tables import AliasRow, AnchorSetRow, EncoderRow, HeadRow, PoolRow, SpaceRow, StoreRow
from app.errors import AnchorsNotEmbedded, NameTaken, NotFound

#: most names that one that does not exist is compared with, and that an error shows
MAX_COMPARED_NAMES, MAX_SHOWN_NAMES = 1_000, 5

Named = TypeVar("Named", EncoderRow, AnchorSetRow, HeadRow, PoolRow, AliasRow, StoreRow)

_NOUN = {
    EncoderRow: "encoder",
    AnchorSetRow: "anchor set",
    HeadRow: "head",
    PoolRow: "pool",
    AliasRow: "name",
    StoreRow: "store",
}


_CREATING = {"encoder": "/encoders", "anchor set": "/anchor-sets", "store": "/stores"}


def by_name(
    session: Session,
    table: type[Named],
    project: str,
    name: str,
    *,
    field: str = "name",
    options: Sequence[ORMOption] = (),
    or_name: bool = False,
) -> Named:
    """Return the row of that name; or_name: the error proposes names too."""
    query = select(table).where(table.project == project, table.name == name)
    rows = _read(session, table, query.options(*options))
    row = rows[0] if rows else None
    if row is None:
        tables: list[type[Named] | type[AliasRow]] = [table, *([AliasRow] if or_name else [])]
        what = f"{_NOUN[table]} or name {name!r}" if or_name else _described(table, name)
        detail = f"There is no {what}. {_name_others(session, tables, project, name)}"
        raise NotFound(detail, _NOUN[table], field=field)
    return row


def _name_others(
    session: Session, tables: Sequence[type[Named] | type[AliasRow]], project: str, name: str
) -> str:
    """Return a question about the most similar name; if none is similar, the first names."""
    names: list[str] = []
    for table in tables:
        query = select(table.name).where(table.project == project).order_by(table.name)
        names += session.scalars(query.limit(MAX_COMPARED_NAMES))
    if near := get_close_matches(name, names, 1):
        return f"Did you mean {near[0]!r}?"
    if not names:
        route = _CREATING.get(_NOUN[tables[0]])
        return "This project has none yet" + (f": POST {route} makes one." if route else ".")
    more = ", ..." * (len(names) > MAX_SHOWN_NAMES)
    return f"This project has {', '.join(map(repr, names[:MAX_SHOWN_NAMES]))}{more}."


def _read(session: Session, table: type[Named], query: Select[Any]) -> Sequence[Named]:
    """Return rows. One statement reads sets and their spaces, so that a deletion parts none."""
    if table is not AnchorSetRow:
        return session.scalars(query).all()
    rows = session.scalars(query.options(joinedload(AnchorSetRow.spaces))).unique().all()
    for row in rows:
        for each in row.spaces:  # the statement does not read the set once more for each space
            set_committed_value(each, "anchor_set", row)
    return rows


def require_free(session: Session, table: type[Named], project: str, name: str) -> None:
    """Raises NameTaken when the name is in use."""
    if session.scalar(select(exists().where(table.project == project, table.name == name))):
        raise NameTaken(
            f"{_article(_described(table, name))} exists. Choose another name.",
            field="name",
        )


def remove(session: Session, row: Named) -> None:
    """Delete a row and all rows that belong to it. Raises the not-found error if it is gone."""
    table = type(row)
    if changed_rows(session, delete(table).where(table.id == row.id)) == 0:
        detail = f"There is no {_described(table, row.name)}."
        raise NotFound(detail, _NOUN[table], field="name")


def page(
    session: Session, table: type[Named], project: str, *, after: str, limit: int
) -> Sequence[Named]:
    """Return rows in the order of their names, after the name `after`."""
    query = (
        select(table)
        .where(table.project == project, table.name > after)
        .order_by(table.name)
        .limit(limit)
    )
    return _read(session, table, query)


def space(session: Session, anchor_set: AnchorSetRow, encoder: EncoderRow) -> SpaceRow:
    """Return the encoder's embeddings of the set."""
    row = session.scalar(
        select(SpaceRow).where(
            SpaceRow.anchor_set_id == anchor_set.id,
            SpaceRow.encoder_id == encoder.id,
        )
    )
    if row is None:
        raise AnchorsNotEmbedded(
            f"Anchor set {anchor_set.name!r} has no embeddings by encoder {encoder.name!r}. "
            f"Add them with PUT /anchor-sets/{anchor_set.name}/embeddings/{encoder.name}.",
            field="anchor_set",
        )
    return row


def spaces_of(
    session: Session, project: str, anchor_set: str, encoders: Collection[str]
) -> dict[str, SpaceRow]:
    """Return the embeddings of a set by these encoders, keyed by the encoders' names.

    One statement reads them all, so that they belong to one set of that name. Missing ones are
    left out. The row of the set must not load its `spaces`.
    """
    query = (
        select(SpaceRow)
        .join(SpaceRow.anchor_set)
        .join(SpaceRow.encoder)
        .where(
            AnchorSetRow.project == project,
            AnchorSetRow.name == anchor_set,
            EncoderRow.name.in_(encoders),
        )
        .options(
            contains_eager(SpaceRow.anchor_set).raiseload(AnchorSetRow.spaces),
            contains_eager(SpaceRow.encoder),
        )
    )
    return {row.encoder.name: row for row in session.scalars(query)}


def encoders_but(session: Session, project: str, kind: str) -> Sequence[EncoderRow]:
    """Return the encoders of every kind but `kind`, in the order of their names."""
    return session.scalars(
        select(EncoderRow)
        .where(EncoderRow.project == project, EncoderRow.kind != kind)
        .order_by(EncoderRow.name)
    ).all()


def encoders_to_check(session: Session, day: int) -> Sequence[EncoderRow]:
    """Return the encoders of all projects with a model that no worker has checked on this day."""
    is_due = or_(EncoderRow.watched_day.is_(None), EncoderRow.watched_day < day)
    return session.scalars(
        select(EncoderRow).where(EncoderRow.model.is_not(None), is_due).order_by(EncoderRow.id)
    ).all()


def claim_check(session: Session, encoder: EncoderRow, day: int) -> bool:
    """Take an encoder's check of this day. Returns whether no other worker had taken it."""
    is_due = or_(EncoderRow.watched_day.is_(None), EncoderRow.watched_day < day)
    claimed = update(EncoderRow).where(EncoderRow.id == encoder.id, is_due)
    return changed_rows(session, claimed.values(watched_day=day)) == 1


def count_checks(session: Session) -> dict[str, int]:
    """Return the number of encoders of all projects by the result of their last check."""
    rows = session.scalars(select(EncoderRow.last_check).where(EncoderRow.last_check.is_not(None)))
    return dict(Counter(row["result"] for row in rows if row))


def spaces_of_encoder(session: Session, encoder: EncoderRow) -> Sequence[SpaceRow]:
    """Return an encoder's spaces, the newest first."""
    query = (
        select(SpaceRow)
        .where(SpaceRow.encoder_id == encoder.id)
        .order_by(SpaceRow.created_at.desc())
    )
    return session.scalars(query).all()


def spaces(session: Session, project: str) -> Sequence[SpaceRow]:
    """Return the spaces of all sets of a project in the order of the sets' names."""
    query = (
        select(SpaceRow)
        .join(AnchorSetRow, AnchorSetRow.id == SpaceRow.anchor_set_id)
        .where(SpaceRow.project == project)
        .order_by(AnchorSetRow.name, SpaceRow.created_at)
    )
    return session.scalars(query).all()


def drop_comparisons(session: Session, encoder: EncoderRow) -> None:
    """Drop the comparisons of other encoders with one that is deleted."""
    query = select(EncoderRow).where(
        EncoderRow.project == encoder.project, EncoderRow.comparisons.is_not(None)
    )
    # In the order of ids, as a comparison locks them.
    for row in session.scalars(query.order_by(EncoderRow.id).with_for_update()):
        kept = dict(row.comparisons or {})
        if kept.pop(encoder.id, None) is not None:
            row.comparisons = kept


def users_of_encoder(session: Session, encoder: EncoderRow) -> list[str]:
    """Return what uses the encoder: 'anchor set a', 'head b', 'pool c'."""
    sets = session.scalars(
        select(AnchorSetRow.name)
        .join(SpaceRow, SpaceRow.anchor_set_id == AnchorSetRow.id)
        .where(SpaceRow.encoder_id == encoder.id)
    ).all()
    heads = session.scalars(select(HeadRow.name).where(HeadRow.encoder_id == encoder.id)).all()
    pools = session.scalars(select(PoolRow.name).where(PoolRow.encoder_id == encoder.id)).all()
    users = {"anchor set": sets, "head": heads, "pool": pools}
    return [f"{noun} {name!r}" for noun, names in users.items() for name in names]


def users_of_anchor_set(session: Session, anchor_set: AnchorSetRow) -> list[str]:
    heads = session.scalars(
        select(HeadRow.name).where(HeadRow.anchor_set_id == anchor_set.id)
    ).all()
    return [f"head {name!r}" for name in heads]


def whole_pool(session: Session, project: str, name: str, *, field: str = "name") -> PoolRow:
    """Return a pool with its pieces."""
    return by_name(session, PoolRow, project, name, field=field, options=[undefer(PoolRow.pieces)])


def extend_pool(session: Session, pool: PoolRow, piece: dict[str, Any]) -> bool:
    """Add a piece to a pool that was read with its pieces.

    Returns False, and adds nothing, if another request has added a piece since.
    """
    unchanged = (PoolRow.id == pool.id, PoolRow.items == pool.items)
    grown = {"pieces": [*pool.pieces, piece], "items": pool.items + piece["rows"]}
    return changed_rows(session, update(PoolRow).where(*unchanged).values(grown)) == 1


def _described(table: type[Named] | type[AliasRow], name: str) -> str:
    return f"name {name!r}" if table is AliasRow else f"{_NOUN[table]} named {name!r}"


def _article(noun: str) -> str:
    return f"An {noun}" if noun[0] in "aeiou" else f"A {noun}"
