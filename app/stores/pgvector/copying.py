"""Copies rows that clients see to the other table, each with the vector that it has there.

Rows of the other table without an entry in the queue are right at each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql

from app.errors import DimensionMismatch, StoreUnavailable
from app.stores.pgvector.attachments import revoke_others
from app.stores.pgvector.capture import acknowledge, claim
from app.stores.pgvector.connections import StoreConnection
from app.stores.pgvector.layout import PgLayout, PgState, PgVectors
from app.stores.pgvector.values import copy_bytes, key_type, stored_keys, zero_vector
from app.stores.port import Changes, StoreId, StoreVectors

#: how often rows are written again when a unique value has moved to another row meanwhile
WRITE_ATTEMPTS = 5

#: vectors of one transaction, by key
_INCOMING = sql.Identifier("pg_temp", "anchorage_incoming")

#: statements that set what LIKE does not copy, or a change of the type forgets
_OPTIONS = """
SELECT format('ALTER TABLE %%s ALTER %%I SET STORAGE %%s', %(new)s::text, attname, CASE attstorage
  WHEN 'p' THEN 'PLAIN' WHEN 'e' THEN 'EXTERNAL' WHEN 'm' THEN 'MAIN' ELSE 'EXTENDED' END)
FROM pg_attribute WHERE attrelid = %(oid)s AND attname = %(column)s
UNION ALL SELECT 'ALTER TABLE ' || %(new)s || ' SET (' || array_to_string(reloptions, ', ') || ')'
FROM pg_class WHERE oid = %(oid)s AND reloptions IS NOT NULL"""


def create_copy(connection: StoreConnection, layout: PgLayout, state: PgState) -> None:
    """Create the table of the new vectors: the columns, checks and options of the client's."""
    front, column = layout.table, layout.seen.column
    new = sql.Identifier(front.schema, state.new)
    connection.run(
        "CREATE TABLE {} (LIKE {} INCLUDING ALL EXCLUDING INDEXES EXCLUDING STATISTICS "
        "EXCLUDING IDENTITY)",
        new,
        front.identifier,
    )
    vector = sql.Identifier(connection.extension, state.type_name)
    connection.run(
        "ALTER TABLE {} ALTER {} TYPE {}({})", new, column, vector, sql.Literal(state.dim)
    )
    connection.run_found(
        _OPTIONS, {"new": new.as_string(connection), "column": column, "oid": front.oid}
    )
    connection.run("ALTER TABLE {} OWNER TO {}", new, front.owner)
    revoke_others(connection, new)  # until a switch copies rights, policies and row security


def write_new(
    connection: StoreConnection,
    layout: PgLayout,
    state: PgState,
    ids: Sequence[StoreId],
    vectors: StoreVectors,
    *,
    replace: bool,
) -> None:
    """Copy the rows of these ids that exist, with new vectors."""
    _load(connection, layout.other, ids, vectors)
    tail = sql.SQL("JOIN {} i ON i.key = r.{}").format(_INCOMING, sql.Identifier(layout.seen.key))
    _write_rows(connection, layout, state, sql.SQL("i.vector").format(), tail, [], replace=replace)


def apply_changes(
    connection: StoreConnection,
    layout: PgLayout,
    state: PgState,
    changes: Changes,
    vectors: StoreVectors,
) -> bool:
    """Repeat changes in the other table. Returns False, and writes nothing, if some do not wait.

    A row without a vector that can be translated gets an empty one, and stays visible.
    """
    numbers, other = changes.token, layout.other
    names = _names(connection, layout, state)
    if not numbers:
        return True
    if not claim(connection, names["queue"], numbers):
        return False
    _load(connection, other, changes.ids, vectors)
    keys = stored_keys([*changes.ids, *changes.deleted], other.kind)
    connection.run(
        "DELETE FROM {other} o WHERE (%s OR o.{key} = ANY(%s::{type}[])) "
        "AND NOT EXISTS (SELECT FROM {seen} s WHERE s.{key} = o.{key})",
        params=[changes.truncated, keys],
        **names,
    )
    vector, values = "coalesce(i.vector, {empty})", [keys]
    if state.phase != "prepared":
        # A change of other columns must not replace a vector that clients wrote by a translation.
        vector = (
            "coalesce(CASE WHEN (SELECT bool_and(q.rows_only) FROM {queue} q WHERE "
            "q.key = r.{key} AND q.seq = ANY(%s)) THEN coalesce("
            "(SELECT o.{column} FROM {other} o WHERE o.{key} = r.{key}), "
            "(SELECT q.vector::{stored} FROM {queue} q WHERE q.key = r.{key} "
            "AND q.vector IS NOT NULL ORDER BY q.seq LIMIT 1)) END, i.vector, {empty})"
        )
        values = [numbers, keys]
    tail = sql.SQL(
        "LEFT JOIN {incoming} i ON i.key = r.{key} WHERE r.{key} = ANY(%s::{type}[])"
    ).format(**names)
    _write_rows(
        connection, layout, state, sql.SQL(vector).format(**names), tail, values, replace=True
    )
    # From here on, the other table has the vector of each row that was deleted to write another.
    connection.run(
        "UPDATE {queue} SET vector = NULL WHERE key = ANY(%s::{type}[]) AND vector IS NOT NULL",
        params=[keys],
        **names,
    )
    acknowledge(connection, state, layout.table.schema, numbers)
    return True


def copy_missing(connection: StoreConnection, layout: PgLayout, state: PgState) -> None:
    """Copy the rows that the other table lacks, with empty vectors. `apply` copies what waits."""
    names = _names(connection, layout, state)
    tail = sql.SQL(
        "WHERE NOT EXISTS (SELECT FROM {other} o WHERE o.{key} = r.{key}) "
        "AND NOT EXISTS (SELECT FROM {queue} q WHERE q.key = r.{key})"
    ).format(**names)
    _write_rows(connection, layout, state, names["empty"], tail, [], replace=False)


def table_files(connection: StoreConnection, layout: PgLayout) -> list[list[int]]:
    """Return numbers of both tables that change when PostgreSQL rewrites one, or adds a column."""
    oids = [layout.seen.relation.oid, layout.other.relation.oid]
    rows = connection.execute(
        "SELECT oid::bigint, pg_relation_filenode(oid)::bigint, relnatts FROM pg_class "
        "WHERE oid = ANY(%s) ORDER BY 1",
        [oids],
    ).fetchall()
    return [list(row) for row in rows]


def requeue_different(connection: StoreConnection, layout: PgLayout, state: PgState) -> int | None:
    """Queue each row of the other table that differs, although no change of it waits.

    Returns the number of rows; None while a TRUNCATE waits, before which nothing can be compared.
    """
    names = _names(connection, layout, state)
    for side in ("s", "o"):
        columns = [sql.Identifier(side, name) for name in (layout.seen.key, *layout.payload)]
        names[f"row_{side}"] = sql.SQL("ROW({})::text").format(sql.SQL(", ").join(columns))
    if connection.run("SELECT FROM {queue} WHERE key IS NULL LIMIT 1", **names).rowcount:
        return None
    return connection.run(
        "INSERT INTO {queue} (key, rows_only) SELECT o.{key}, true FROM {other} o "
        "LEFT JOIN {seen} s ON s.{key} = o.{key} WHERE {row_o} IS DISTINCT FROM {row_s} "
        "AND o.{key} NOT IN (SELECT key FROM {queue} WHERE key IS NOT NULL)",
        **names,
    ).rowcount


def delete_waiting(connection: StoreConnection, layout: PgLayout, state: PgState) -> None:
    """Delete rows of the other table with an entry in the queue: `apply` brings them back.

    The entry keeps the vector of its row. The entry of a TRUNCATE has no key: it stands for all
    rows that clients no longer see.
    """
    names = _names(connection, layout, state)
    connection.run(
        "DELETE FROM {other} o WHERE EXISTS (SELECT FROM {queue} WHERE key IS NULL) "
        "AND NOT EXISTS (SELECT FROM {seen} s WHERE s.{key} = o.{key})",
        **names,
    )
    connection.run(
        "WITH deleted AS (DELETE FROM {other} o USING {queue} q WHERE q.key = o.{key} "
        "RETURNING o.{key} AS key, o.{column} AS vector) "
        "UPDATE {queue} q SET vector = d.vector::real[] FROM deleted d WHERE q.key = d.key",
        **names,
    )


def _names(
    connection: StoreConnection, layout: PgLayout, state: PgState
) -> dict[str, sql.Composable]:
    """Return what statements on both tables name.

    empty  the vector of rows without one: NULL, or zeros where the column must not be NULL
    """
    other = layout.other
    empty: sql.Composable = sql.SQL("NULL")
    if other.relation.column(other.column).not_null:
        empty = zero_vector(connection.extension, other.type_name, other.dim)
    return {
        "other": other.relation.identifier,
        "seen": layout.table.identifier,
        "queue": sql.Identifier(layout.table.schema, state.queue),
        "key": sql.Identifier(other.key),
        "column": sql.Identifier(other.column),
        "type": key_type(other.kind),
        "stored": sql.Identifier(connection.extension, other.type_name),
        "incoming": _INCOMING,
        "empty": empty,
    }


def _load(
    connection: StoreConnection, target: PgVectors, ids: Sequence[StoreId], vectors: StoreVectors
) -> None:
    """Load vectors for `target` into a table of this transaction."""
    if len(ids) and vectors.shape != (len(ids), target.dim or vectors.shape[1]):
        raise DimensionMismatch(
            f"Vectors of shape {vectors.shape} were written for {len(ids)} rows of {target.dim} "
            "dimensions. Translate them to the target encoder."
        )
    # PostgreSQL takes the new table for a large one: its join would read the client's whole table.
    connection.execute("SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off")
    connection.run(
        "CREATE TEMPORARY TABLE anchorage_incoming (key {}, vector {}) ON COMMIT DROP",
        key_type(target.kind),
        sql.Identifier(connection.extension, target.type_name),
    )
    if len(ids):
        load = sql.SQL("COPY {} FROM STDIN BINARY").format(_INCOMING)
        with connection.cursor().copy(load) as copy:
            copy.write(copy_bytes(ids, vectors, target.kind, target.type_name))


def _write_rows(
    connection: StoreConnection,
    layout: PgLayout,
    state: PgState,
    vector: sql.Composable,
    tail: sql.Composable,
    values: Sequence[Any],
    *,
    replace: bool,
) -> None:
    """Copy rows `r` that clients see to the other table, each with `vector`."""
    other = layout.other
    names = {each.name for each in layout.table.columns} - {other.column}
    columns = [
        sql.Identifier(each.name)
        for each in other.relation.columns
        if each.name in names and not each.generated
    ]
    written = [*columns, sql.Identifier(other.column)]
    update = sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(each) for each in written)
    statement = sql.SQL(
        "INSERT INTO {other} ({written}) SELECT {rows}, {vector} FROM {seen} r {tail} "
        "ON CONFLICT ({key}) DO {conflict}"
    ).format(
        other=other.relation.identifier,
        written=sql.SQL(", ").join(written),
        rows=sql.SQL(", ").join(sql.SQL("r.{}").format(each) for each in columns),
        vector=vector,
        seen=layout.table.identifier,
        tail=tail,
        key=sql.Identifier(other.key),
        conflict=sql.SQL("UPDATE SET {}").format(update) if replace else sql.SQL("NOTHING"),
    )
    for _ in range(WRITE_ATTEMPTS):
        try:
            with connection.transaction():
                connection.execute(statement, values)
                connection.execute("SET CONSTRAINTS ALL IMMEDIATE")  # not first at the commit
            return
        except psycopg.errors.UniqueViolation:
            delete_waiting(connection, layout, state)
    raise StoreUnavailable(
        "Clients move unique values between rows faster than they can be copied. Try again."
    )
