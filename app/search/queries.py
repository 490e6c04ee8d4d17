"""The stored vectors of texts, and the numbers of texts that projects had embedded."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, delete, func, select, tuple_, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from app.db.statements import changed_rows
from app.db.tables import Base, NativeSpendingRow, NativeVectorRow, StoreRow

#: bytes of a row without its vector, with its share of three indexes
ROW_BYTES = 400

#: most rows that one statement names
MAX_STATEMENT_ROWS = 500

_Row = NativeVectorRow


class VectorSpace(NamedTuple):
    """A project's vectors by the encoder of this id, in a role."""

    project: str
    space: str
    role: str


class StoreRowId(NamedTuple):
    """The row of a store that has a text, by the SHA-256 of its id."""

    store_id: str
    row_id: str

    @classmethod
    def of(cls, store_id: str, row: int | str) -> StoreRowId:
        """Return the row of this id, a number or a text."""
        return cls(store_id, hashlib.sha256(json.dumps(row).encode()).hexdigest())


def find_vectors(
    session: Session, space: VectorSpace, digests: Sequence[bytes]
) -> tuple[dict[bytes, bytes], bool]:
    """Return the stored vectors of texts by their digests, and whether `touch_vectors` is due."""
    found: dict[bytes, bytes] = {}
    due, hour = False, _hour()
    for start in range(0, len(digests), MAX_STATEMENT_ROWS):
        part = digests[start : start + MAX_STATEMENT_ROWS]
        rows = session.execute(
            select(_Row.digest, _Row.vector, _Row.read_hour, _Row.store_id).where(
                *_in(space), _Row.digest.in_(part)
            )
        ).all()
        found |= {digest: vector for digest, vector, *_ in rows}
        due = due or any(read < hour or store is None for *_, read, store in rows)
    return found, due


def touch_vectors(
    session: Session,
    space: VectorSpace,
    digests: Sequence[bytes],
    rows: Mapping[bytes, StoreRowId],
) -> None:
    """Remember that vectors were read, and which rows have the texts that no row had.

    Skips what another process touches now.
    """
    hour = _hour()
    for start in range(0, len(digests), MAX_STATEMENT_ROWS):
        free = (
            select(_Row.digest, _Row.read_hour, _Row.store_id)
            .where(*_in(space), _Row.digest.in_(digests[start : start + MAX_STATEMENT_ROWS]))
            .order_by(_Row.digest)
            .with_for_update(skip_locked=True)
        )
        for digest, read, store in session.execute(free).all():
            values: dict[str, Any] = {} if read >= hour else {"read_hour": hour}
            if store is None and digest in rows:
                values |= rows[digest]._asdict()
            if values:
                changed_rows(
                    session,
                    update(_Row).where(*_in(space), _Row.digest == digest).values(**values),
                )


def add_vectors(
    session: Session,
    space: VectorSpace,
    vectors: Mapping[bytes, bytes],
    rows: Mapping[bytes, StoreRowId],
) -> None:
    """Store vectors by the digests of their texts, unless the store of the rows was deleted.

    Those that are there stay.
    """
    stores = {row.store_id for row in rows.values()}
    there = set(session.scalars(select(StoreRow.id).where(StoreRow.id.in_(stores))))
    hour = _hour()
    values = []
    for digest in sorted(vectors):  # two processes that insert the same wait in one order
        row = rows.get(digest)
        if row is None or row.store_id in there:
            owner = {"store_id": None, "row_id": None} if row is None else row._asdict()
            made = {"digest": digest, "vector": vectors[digest], "read_hour": hour}
            values.append({**space._asdict(), **made, **owner})
    if values:
        session.execute(insert_into(session, _Row).on_conflict_do_nothing(), values)


def delete_of_store(session: Session, store_id: str, row_id: str | None = None) -> int:
    """Delete the vectors of a store's texts, or of one row; return their number."""
    where = [_Row.store_id == store_id]
    if row_id is not None:
        where.append(_Row.row_id == row_id)
    return changed_rows(session, delete(_Row).where(*where))


def spare_vectors(session: Session, max_bytes: int) -> int:
    """Return about how many vectors are too many for this number of bytes."""
    count, size = session.execute(
        select(func.count(), func.coalesce(func.sum(func.length(_Row.vector)), 0)).select_from(_Row)
    ).one()
    whole = int(size) + ROW_BYTES * int(count)
    return max(0, -((max_bytes - whole) * int(count) // max(whole, 1)))


def delete_of_space(session: Session, project: str, space: str) -> None:
    """Delete a project's vectors by one encoder."""
    changed_rows(session, delete(_Row).where(_Row.project == project, _Row.space == space))


def delete_oldest(session: Session, count: int) -> int:
    """Delete the vectors that were read longest ago, at most `count`; return their number."""
    key = (_Row.project, _Row.space, _Row.role, _Row.digest)
    oldest = select(*key).order_by(_Row.read_hour).limit(count)
    return changed_rows(session, delete(_Row).where(tuple_(*key).in_(oldest)))


def spend_texts(session: Session, project: str, count: int, a_minute: int, a_day: int) -> int:
    """Return how many of `count` texts the project may have embedded now, and count them."""
    now = int(time.time())
    minute, day = now // 60, now // 86_400
    first = {"project": project, "minute": minute, "day": day, "minute_texts": 0, "day_texts": 0}
    session.execute(insert_into(session, NativeSpendingRow).on_conflict_do_nothing(), [first])
    row = session.get_one(NativeSpendingRow, project, with_for_update=True)
    if row.minute != minute:
        row.minute, row.minute_texts = minute, 0
    if row.day != day:
        row.day, row.day_texts = day, 0
    allowed = max(0, min(count, a_minute - row.minute_texts, a_day - row.day_texts))
    row.minute_texts += allowed
    row.day_texts += allowed
    return allowed


def insert_into(session: Session, table: type[Base]) -> Any:
    """Return an INSERT that can leave out rows whose key exists."""
    postgres = session.get_bind().dialect.name == "postgresql"
    return postgresql.insert(table) if postgres else sqlite.insert(table)


def _in(space: VectorSpace) -> tuple[ColumnElement[bool], ...]:
    return (
        _Row.project == space.project,
        _Row.space == space.space,
        _Row.role == space.role,
    )


def _hour() -> int:
    return int(time.time()) // 3_600
