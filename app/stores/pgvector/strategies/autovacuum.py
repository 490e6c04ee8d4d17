"""Ends an autovacuum before a lock that it would block."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import psycopg
from psycopg import sql

from app.errors import StoreChanged, StoreRefused, StoreUnsupported
from app.stores.base import StoreLocation
from app.stores.pgvector.catalogue import PgRelation
from app.stores.pgvector.connections import StoreConnection
from app.stores.pgvector.layout import load_layout

#: how much longer than deadlock_timeout to wait: then the server cancels the autovacuum
GRACE_MS = 2_000


def stop_autovacuum(connection: StoreConnection, location: StoreLocation) -> None:
    """Stop autovacuums of all tables of a collection.

    Missing tables and rights are for the next step to name, or, to abandon, no obstacle.
    """
    lacking = (StoreChanged, StoreRefused, StoreUnsupported)
    with suppress(*lacking, psycopg.errors.InsufficientPrivilege), connection.transaction():
        layout = load_layout(connection, location)
        used = [layout.rows, layout.old.relation]
        used += [] if layout.new is None else [layout.new.relation]
        _wait_for(connection, used)


def _wait_for(connection: StoreConnection, tables: Iterable[PgRelation]) -> None:
    """Wait for autovacuums of these tables, and keep new ones away until the transaction ends.

    The server cancels an autovacuum once somebody has waited deadlock_timeout for its lock. An
    autovacuum of a table with an HNSW index takes minutes. Clients do not wait meanwhile: SHARE
    UPDATE EXCLUSIVE conflicts with none of their statements. Raises psycopg's LockNotAvailable.
    """
    connection.execute(
        "SELECT set_config('lock_timeout', (%s + 1000 * extract(epoch FROM "
        "current_setting('deadlock_timeout')::interval))::int::text, true)",
        [GRACE_MS],
    )
    for table in {each.oid: each for each in tables}.values():
        connection.execute(
            sql.SQL("LOCK TABLE {} IN SHARE UPDATE EXCLUSIVE MODE").format(table.identifier)
        )
