"""A migration that reads fill: rows that searches read get native vectors, and stay readable.

A search records which rows it had embedded, and writes nothing to the store. The migration writes
their native vectors: those of a page when it passes them, and later ones when it synchronises. A
vector counts for a row while the row's text is the one that was embedded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from sqlalchemy.orm import Session

from app.services.encoders import native_vectors
from app.storage import tables
from app.storage.queries import store_reads as queries
from app.storage.queries.native_vectors import StoreRowId
from app.storage.queries.store_reads import ReadBy
from app.stores.base import StoreId, StoreVectors
from app.types import MigrationState

if TYPE_CHECKING:
    from app.services.store_migrations.context import MigrationContext

#: rows that are embedded and written at once, and most rows of one round
FILLED_ROWS, MAX_FILLED = 64, 1_024

#: states in which rows that were read since are filled
FILLED_STATES = (MigrationState.filled, MigrationState.rolled_back)


def takes_reads(row: tables.MigrationRow) -> bool:
    """Return whether native vectors of rows that are read now are written."""
    return row.is_filled_by_reads and row.state in FILLED_STATES


def reads_of(row: tables.MigrationRow) -> ReadBy:
    """Return whose reads fill a migration."""
    return ReadBy(row.store_id, row.target_id)


def take_native(move: MigrationContext, ids: Sequence[StoreId]) -> dict[int, StoreVectors]:
    """Return the native vectors of rows by their places, and record which rows get one."""
    if not move.row.is_filled_by_reads or not len(ids):
        return {}
    of = reads_of(move.row)
    with move.services.db.transaction() as session:
        read = queries.read_of(session, of, ids)
    places = [place for place, each in enumerate(ids) if each in read]
    if not places:
        return {}
    texts = move.store.texts([ids[place] for place in places])
    made = native_vectors.find_current(move.services, move.row.project, move.row.target, texts)
    found = {place: each for place, each in zip(places, made, strict=True) if each is not None}
    with move.services.db.transaction() as session:
        queries.set_native(session, of, {ids[place]: place in found for place in places})
    return {place: each.numpy() for place, each in found.items()}


def find_native(move: MigrationContext, ids: Sequence[StoreId]) -> set[StoreId]:
    """Return which rows have a native vector that this migration has written because of reads."""
    if not move.row.is_filled_by_reads:
        return set()
    with move.services.db.transaction() as session:
        return queries.read_of(session, reads_of(move.row), ids, is_native=True)


def has_reads(session: Session, row: tables.MigrationRow) -> bool:
    """Return whether rows were read whose native vectors are not written."""
    return takes_reads(row) and bool(queries.reads(session, reads_of(row), 1, is_native=False))


def embed_reads(move: MigrationContext) -> None:
    """Have texts of the rows that were read last embedded, without a lease, and within the budget.

    A row that was deleted, or has no text that the encoder takes, is forgotten.
    """
    row, of = move.row, reads_of(move.row)
    with move.services.db.transaction() as session:
        ids = queries.reads(session, of, FILLED_ROWS, is_native=False)
    texts = move.store.texts(list(ids))
    rows = [StoreRowId.of(row.store_id, each) for each in ids]
    made, is_covered = native_vectors.find_or_embed(
        move.services, move.context, row.target, texts, rows
    )
    if is_covered:
        refused = [id for id, vector in zip(ids, made, strict=True) if vector is None]
        with move.services.db.transaction() as session:
            queries.delete_reads(session, of, refused)


def fill_reads(move: MigrationContext) -> tuple[int, int]:
    """Write the stored native vectors of the rows that were read last, under a lease.

    Returns the number that was written, and of those that wait for their vectors.
    """
    of, filled, waiting = reads_of(move.row), 0, 0
    with move.services.db.transaction() as session:
        every = queries.reads(session, of, MAX_FILLED, is_native=False)
    for start in range(0, len(every), FILLED_ROWS):
        ids = list(every[start : start + FILLED_ROWS])
        texts = move.store.texts(ids)
        made = native_vectors.find_current(move.services, move.row.project, move.row.target, texts)
        ready = {id: each.numpy() for id, each in zip(ids, made, strict=True) if each is not None}
        if ready:
            move.migration.write(list(ready), np.stack(list(ready.values())), replace=True)
            with move.services.db.transaction() as session:
                queries.set_native(session, of, dict.fromkeys(ready, True))
        filled += len(ready)
        waiting += len(ids) - len(ready)
    return filled, waiting
