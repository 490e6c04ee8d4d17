"""Rows of stores that native scores of an encoder were read for, the latest first."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, delete, func, select, update
from sqlalchemy.orm import Session

from app.storage.queries.native_vectors import MAX_STATEMENT_ROWS, StoreRowId, insert_into
from app.storage.queries.statements import changed_rows
from app.storage.tables import StoreReadRow

#: most rows of a store that are kept for each encoder
MAX_READS = 20_000

#: the last reads, by whose share a migration that reads fill is judged
RECENT_READS = 1_000

_Row = StoreReadRow


class ReadBy(NamedTuple):
    """The reads of a store by an encoder."""

    store_id: str
    encoder_id: str

    def key(self, row: int | str) -> str:
        """Return the key of the row of this id."""
        return StoreRowId.of(self.store_id, row).row_id


def add_reads(session: Session, of: ReadBy, rows: Collection[int | str]) -> None:
    """Record that rows were read now, and forget those that were read longest ago.

    A row whose native vector a migration has written stays until the migration ends.
    """
    now = int(time.time())
    values = [
        {**of._asdict(), "row_id": key, "row": row, "read_at": now}
        for key, row in sorted({of.key(row): row for row in rows}.items())
    ]
    if not values:
        return
    statement = insert_into(session, _Row)
    session.execute(
        statement.on_conflict_do_update(
            index_elements=["store_id", "encoder_id", "row_id"],
            set_={"read_at": statement.excluded.read_at},
        ),
        values,
    )
    oldest = (
        select(_Row.read_at)
        .where(*_in(of))
        .order_by(_Row.read_at.desc())
        .offset(MAX_READS)
        .limit(1)
    ).scalar_subquery()
    spare = (
        select(_Row.row_id)
        .where(*_in(of), _Row.read_at < oldest, _Row.is_native.is_(False))
        .with_for_update(skip_locked=True)
    )
    changed_rows(session, delete(_Row).where(*_in(of), _Row.row_id.in_(spare)))


def reads(
    session: Session, of: ReadBy, limit: int, *, is_native: bool | None = None
) -> Sequence[int | str]:
    """Return the ids of the rows that were read last. is_native: only these; None: all."""
    flag = () if is_native is None else (_Row.is_native.is_(is_native),)
    query = select(_Row.row).where(*_in(of), *flag).order_by(_Row.read_at.desc(), _Row.row_id)
    return session.scalars(query.limit(limit)).all()


def set_native(session: Session, of: ReadBy, rows: Mapping[int | str, bool]) -> None:
    """Record whether a migration has written native vectors of these rows, if they were read."""
    wanted = {of.key(row): value for row, value in rows.items()}
    for part in _parts(wanted):
        keys = _lock(session, *_in(of), _Row.row_id.in_(part))
        for is_native in (False, True):
            others = [key for key in keys if wanted[key] == is_native]
            where = (*_in(of), _Row.row_id.in_(others), _Row.is_native.is_(not is_native))
            changed_rows(session, update(_Row).where(*where).values(is_native=is_native))


def read_of(
    session: Session, of: ReadBy, rows: Sequence[int | str], *, is_native: bool | None = None
) -> set[int | str]:
    """Return which of these rows were read. is_native: only these; None: all."""
    flag = () if is_native is None else (_Row.is_native.is_(is_native),)
    keys = {of.key(row): row for row in rows}
    found = [
        key
        for part in _parts(keys)
        for key in session.scalars(
            select(_Row.row_id).where(*_in(of), _Row.row_id.in_(part), *flag)
        )
    ]
    return {keys[each] for each in found}


def reset_native(session: Session, of: ReadBy) -> None:
    """Record that no native vector is written: a migration ended."""
    where = (*_in(of), _Row.is_native.is_(True))
    _lock(session, *where)
    changed_rows(session, update(_Row).where(*where).values(is_native=False))


def native_share(session: Session, of: ReadBy) -> tuple[int, int]:
    """Return the number of the recent reads, and of those with a native vector."""
    recent = (
        select(_Row.is_native)
        .where(*_in(of))
        .order_by(_Row.read_at.desc(), _Row.row_id)
        .limit(RECENT_READS)
    ).subquery()
    native = func.count().filter(recent.c.is_native.is_(True))
    count, of_them = session.execute(select(func.count(), native).select_from(recent)).one()
    return int(count), int(of_them)


def delete_reads(session: Session, of: ReadBy, rows: Sequence[int | str]) -> None:
    """Forget rows, which were deleted or have no text."""
    _delete(session, *_in(of), _Row.row_id.in_([of.key(row) for row in rows]))


def delete_reads_of_store(session: Session, store_id: str, row_id: str | None = None) -> None:
    """Forget the reads of a store, or of one row by its key.

    A row whose native vector a migration has written stays until the migration ends.
    """
    one = () if row_id is None else (_Row.row_id == row_id,)
    _delete(session, _Row.store_id == store_id, _Row.is_native.is_(False), *one)


def _delete(session: Session, *where: ColumnElement[bool]) -> None:
    _lock(session, *where)
    changed_rows(session, delete(_Row).where(*where))


def _lock(session: Session, *where: ColumnElement[bool]) -> Sequence[str]:
    """Lock rows in the one order in which all processes do it, and return their keys."""
    query = select(_Row.row_id).where(*where).order_by(_Row.row_id)
    return session.scalars(query.with_for_update()).all()


def _parts(keys: Collection[str]) -> list[list[str]]:
    every = sorted(keys)
    return [
        every[start : start + MAX_STATEMENT_ROWS]
        for start in range(0, len(every), MAX_STATEMENT_ROWS)
    ]


def _in(of: ReadBy) -> tuple[ColumnElement[bool], ...]:
    return (_Row.store_id == of.store_id, _Row.encoder_id == of.encoder_id)
