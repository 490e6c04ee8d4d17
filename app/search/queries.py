"""The stored vectors of texts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import delete, func, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from app.db.session import changed_rows
from app.db.tables import NativeVectorRow as _Row

#: bytes of a row without its vector, with its share of three indexes
ROW_BYTES = 400

#: most rows that one statement names
MAX_STATEMENT_ROWS = 500


class StoreRowId(NamedTuple):
    """The row of a store that has a text; `row_id` is the digest of its id."""

    store_id: str
    row_id: str


def row_digest(row: int | str) -> str:
    """Return the SHA-256 of a row's id, a number or a text."""
    return hashlib.sha256(json.dumps(row).encode()).hexdigest()


def find_vectors(
    session: Session, encoder_id: str, digests: Sequence[bytes]
) -> dict[bytes, tuple[bytes, str | None]]:
    """Return the stored vectors of texts by their digests, and the store of the row that has each
    text.
    """
    found: dict[bytes, tuple[bytes, str | None]] = {}
    for start in range(0, len(digests), MAX_STATEMENT_ROWS):
        rows = session.execute(
            select(_Row.digest, _Row.vector, _Row.store_id).where(
                _Row.encoder_id == encoder_id,
                _Row.digest.in_(digests[start : start + MAX_STATEMENT_ROWS]),
            )
        )
        found |= {digest: (vector, store) for digest, vector, store in rows}
    return found


def add_vectors(
    session: Session,
    encoder_id: str,
    vectors: Mapping[bytes, bytes],
    rows: Mapping[bytes, StoreRowId],
) -> None:
    """Store vectors by the digests of their texts, with the rows that have these.

    Of those that are stored already, only a missing row is added.
    """
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    statement = insert(_Row)
    new = statement.excluded
    session.execute(
        statement.on_conflict_do_update(
            index_elements=[_Row.encoder_id, _Row.digest],
            set_={"store_id": new.store_id, "row_id": new.row_id},
            where=_Row.store_id.is_(None),
        ),
        [
            {
                "encoder_id": encoder_id,
                "digest": digest,
                "vector": vectors[digest],
                "store_id": rows[digest].store_id if digest in rows else None,
                "row_id": rows[digest].row_id if digest in rows else None,
            }
            for digest in sorted(vectors)  # two processes that insert the same wait in one order
        ],
    )


def delete_of_rows(session: Session, store_id: str, rows: Sequence[str] | None = None) -> int:
    """Delete the vectors of the texts of a store, or of some of its rows by their digests; return
    their number.
    """
    where = [_Row.store_id == store_id]
    if rows is not None:
        where.append(_Row.row_id.in_(rows))
    return changed_rows(session, delete(_Row).where(*where))


def spare_vectors(session: Session, max_bytes: int) -> int:
    """Return about how many vectors are too many for this number of bytes."""
    count, size = session.execute(
        select(func.count(), func.coalesce(func.sum(func.length(_Row.vector)), 0)).select_from(_Row)
    ).one()
    whole = int(size) + ROW_BYTES * int(count)
    return max(0, -((max_bytes - whole) * int(count) // max(whole, 1)))


def delete_oldest(session: Session, count: int) -> int:
    """Delete the vectors that were made first, at most `count`; return their number."""
    key = (_Row.encoder_id, _Row.digest)
    oldest = select(*key).order_by(_Row.made_at).limit(count)
    return changed_rows(session, delete(_Row).where(tuple_(*key).in_(oldest)))
