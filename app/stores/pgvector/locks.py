"""Locks of several tables, tried briefly, so that clients do not queue behind them.

A step that locks several tables gives all up before the server looks for deadlocks: a backup, which
locks every table too, would be the one that the server ends.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import LiteralString, TypeVar

import psycopg
from psycopg import sql

from app.errors import StoreChanged, StoreRefused, StoreUnavailable, StoreUnsupported
from app.stores.pgvector.connections import SHORT_STATEMENT_S, PgConnections, StoreConnection
from app.stores.pgvector.tables import PgLayout, load_layout
from app.stores.port import StoreLocation

#: longest wait for one lock, during which others queue behind; and for how long to try again
LOCK_MS, LOCK_PATIENCE_S = 100, 60.0

#: share of deadlock_timeout within which a step gets all its locks
LOCKING_SHARE = 0.75

#: how much longer than deadlock_timeout to wait: then the server cancels the autovacuum
GRACE_MS = 2000

#: statements that lock all that a switch changes, and change nothing. `LOCK TABLE` takes no
#: sequence, and would lock all tables of a view. Of foreign keys, the role locks the tables that it
#: may; the drop of the key locks the others
_LOCKS_OF_SWITCH: LiteralString = """
WITH keys AS (SELECT unnest(ARRAY[conrelid, confrelid]) AS oid FROM pg_constraint
  WHERE contype = 'f' AND %(front)s IN (conrelid, confrelid) AND conparentid = 0),
views AS (SELECT w.ev_class AS oid FROM pg_depend d JOIN pg_rewrite w ON w.oid = d.objid
  WHERE d.refobjid = %(front)s AND d.refclassid = 'pg_class'::regclass
    AND d.classid = 'pg_rewrite'::regclass),
sequences AS (SELECT objid AS oid FROM pg_depend WHERE refobjid = %(front)s
  AND classid = 'pg_class'::regclass AND refclassid = 'pg_class'::regclass)
SELECT format(CASE r.relkind WHEN 'v' THEN 'ALTER VIEW %%1$I.%%2$I SET SCHEMA %%1$I'
  WHEN 'S' THEN 'ALTER SEQUENCE %%1$I.%%2$I OWNER TO %%3$I'
  WHEN 'p' THEN 'LOCK TABLE %%I.%%I IN ACCESS EXCLUSIVE MODE'
  ELSE 'LOCK TABLE ONLY %%I.%%I IN ACCESS EXCLUSIVE MODE' END, n.nspname, r.relname,
  pg_get_userbyid(r.relowner))
FROM pg_class r JOIN pg_namespace n ON n.oid = r.relnamespace
WHERE r.oid IN (%(front)s, %(other)s) OR r.oid IN (SELECT oid FROM keys) AND
    (pg_has_role(r.relowner, 'USAGE') OR has_table_privilege(r.oid, 'UPDATE, DELETE, TRUNCATE'))
  OR r.oid IN (SELECT oid FROM views) AND r.relkind = 'v' AND r.relpersistence <> 't'
  AND pg_has_role(r.relowner, 'USAGE') OR r.oid IN (SELECT oid FROM sequences) AND r.relkind = 'S'
ORDER BY r.oid <> %(front)s, r.oid <> %(other)s, r.relkind, r.oid"""

Result = TypeVar("Result")


def locks_of_switch(layout: PgLayout) -> list[str]:
    """Return statements that lock both tables, those of foreign keys, views and sequences."""
    oids = {"front": layout.seen.oid, "other": layout.other.oid}
    return [text for [text] in layout.connection.execute(_LOCKS_OF_SWITCH, oids).fetchall()]


def lock_all(connection: StoreConnection, locks: Sequence[str]) -> None:
    """Execute these statements as one, which ends before deadlock_timeout does."""
    within_ms = int(LOCKING_SHARE * connection.deadlock_ms)
    connection.execute(f"SET LOCAL statement_timeout = {within_ms}")
    statement = sql.Literal(f"BEGIN {' '.join(f'{each};' for each in locks)} END")
    try:
        connection.run("DO {}", statement)
    except psycopg.errors.QueryCanceled as error:
        raise psycopg.errors.LockNotAvailable from error
    connection.execute(f"SET LOCAL statement_timeout = '{SHORT_STATEMENT_S}s'")


def run_locked(
    connections: PgConnections,
    location: StoreLocation,
    action: str,
    step: Callable[[StoreConnection], Result],
) -> tuple[Result, float]:
    """Run a step in a transaction that waits briefly for locks, and again if it must.

    What a step that returns False has done is undone. Returns the result of the step, and the
    longest time that one attempt kept others waiting.
    """
    until, longest = time.monotonic() + LOCK_PATIENCE_S, 0.0
    with connections.use(action, whole=False) as connection:
        while True:
            began = time.monotonic()
            try:
                _stop_autovacuum(connection, location)
                began = time.monotonic()  # no client has waited until here
                with connection.transaction() as whole:
                    connection.execute(f"SET LOCAL lock_timeout = {LOCK_MS}")
                    result = step(connection)
                    if result is False:
                        raise psycopg.Rollback(whole)
                return result, max(longest, time.monotonic() - began)
            except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
                longest = max(longest, time.monotonic() - began)
                if time.monotonic() > until:
                    error = StoreUnavailable(
                        f"Other transactions hold the table for more than {LOCK_PATIENCE_S:.0f} s. "
                        "End them, and try again."
                    )
                    error.is_unchanged = True
                    raise error from None
            time.sleep(random.uniform(0.05, 0.3))  # noqa: S311 (no secret)


def _stop_autovacuum(connection: StoreConnection, location: StoreLocation) -> None:
    """Wait for autovacuums of both tables.

    The server cancels an autovacuum once somebody has waited deadlock_timeout for its lock. An
    autovacuum of a table with an HNSW index takes minutes. Clients do not wait meanwhile: SHARE
    UPDATE EXCLUSIVE conflicts with none of their statements. Whoever waits that long must hold
    no other lock, so each table has a transaction. Missing tables and rights are for the next
    step to name, or, to abandon, no obstacle.
    """
    lacking = (StoreChanged, StoreRefused, StoreUnsupported)
    with suppress(*lacking, psycopg.errors.InsufficientPrivilege):
        layout = load_layout(connection, location)
        for each in (layout.seen, layout.hidden):
            if each is not None:
                with connection.transaction():
                    within_ms = connection.deadlock_ms + GRACE_MS
                    connection.execute(f"SET LOCAL lock_timeout = {within_ms}")
                    connection.run("LOCK TABLE {} IN SHARE UPDATE EXCLUSIVE MODE", each.identifier)
