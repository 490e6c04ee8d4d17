"""Sums over the compared searches of stores: a few dozen rows a day for each mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from app.storage.queries.native_vectors import insert_into
from app.storage.queries.statements import changed_rows
from app.storage.tables import EncoderRow, StoreComparisonRow, today

_Row = StoreComparisonRow


class Compared(NamedTuple):
    """Searches of a store by an encoder and a mode."""

    store_id: str
    target_id: str
    mode: str


def add_sums(session: Session, of: Compared, sums: Mapping[str, float]) -> None:
    """Add to the sums of today."""
    day = today()
    values = [  # in one order, so that two processes do not wait for each other
        {**of._asdict(), "day": day, "name": name, "value": value}
        for name, value in sorted(sums.items())
    ]
    statement: Any = insert_into(session, _Row)
    keys = ["store_id", "target_id", "mode", "day", "name"]
    more = {"value": _Row.value + statement.excluded.value}
    session.execute(statement.on_conflict_do_update(index_elements=keys, set_=more), values)


def read_sums(session: Session, store_id: str) -> Sequence[tuple[str, str, str, float, int]]:
    """Return (target, mode, name, sum of all days, first day)."""
    key = (EncoderRow.name, _Row.mode, _Row.name)
    return session.execute(
        select(*key, func.sum(_Row.value), func.min(_Row.day))
        .join(EncoderRow, EncoderRow.id == _Row.target_id)
        .where(_Row.store_id == store_id)
        .group_by(*key)
        .order_by(*key)
    ).all()


def delete_sums(session: Session, store_id: str) -> None:
    """Forget all comparisons of a store."""
    changed_rows(session, delete(_Row).where(_Row.store_id == store_id))


def delete_sums_before(session: Session, days: int) -> int:
    """Delete what is older than these days; return the number of sums."""
    oldest = today() - days
    return changed_rows(session, delete(_Row).where(_Row.day < oldest))
