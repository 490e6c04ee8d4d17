"""Copies rows that clients see to the other table, each with the vector that it has there.

Rows of the other table without an entry in the queue are right at each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql

from app.errors import DimensionMismatch, StoreUnavailable
from app.stores.base import Changes, StoreId, StoreVectors
from app.stores.pgvector.capture import acknowledge, claim
from app.stores.pgvector.connections import (
    StoreConnection,
    copy_bytes,
    key_type,
    stored_keys,
    zero_vector,
)
from app.stores.pgvector.layout import PgLayout, PgState, PgVectors

#: how often rows are written again when a unique value has moved to another row meanwhile
WRITE_ATTEMPTS = 5

#: vectors of one transaction, by key
_INCOMING = sql.Identifier("pg_temp", "anchorage_incoming")


_STORAGES = {"p": "PLAIN", "e": "EXTERNAL", "m": "MAIN", "x": "EXTENDED"}


def create_copy(connection: StoreConnection, layout: PgLayout, state: PgState) -> None:
    """Create the table of the new vectors: the columns, checks and options of the client's."""
    front = layout.table
    row = connection.execute(
        "SELECT coalesce(c.reloptions, '{}')::text[], t.spcname, a.attstorage::text "
        "FROM pg_class c LEFT JOIN pg_tablespace t ON t.oid = c.reltablespace "
        "JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = %s WHERE c.oid = %s",
        [layout.old.column, front.oid],
    ).fetchone()
    assert row is not None
    options, space, storage = row
    new = sql.Identifier(front.schema, state.new)
    connection.run(
        "CREATE {} TABLE {} (LIKE {} INCLUDING ALL EXCLUDING INDEXES EXCLUDING STATISTICS){}{}",
        sql.SQL("UNLOGGED" if front.persistence == "u" else ""),
        new,
        front.identifier,
        sql.SQL(f" WITH ({', '.join(options)})" if options else ""),
        sql.SQL(" TABLESPACE {}").format(sql.Identifier(space)) if space else sql.SQL(""),
    )
    connection.run(
        "ALTER TABLE {} ALTER COLUMN {} TYPE {}({})",
        new,
        layout.old.column,
        sql.Identifier(connection.extension, state.type_name),
        sql.SQL(str(state.dim)),
    )
    connection.run(
        "ALTER TABLE {} ALTER COLUMN {} SET STORAGE {}",
        new,
        layout.old.column,
        sql.SQL(_STORAGES[storage]),
    )
    connection.run("ALTER TABLE {} OWNER TO {}", new, front.owner)


def write_new(
    connection: StoreConnection,
    layout: PgLayout,
    ids: Sequence[StoreId],
    vectors: StoreVectors,
    *,
    replace: bool,
) -> None:
    """Copy the rows of these ids that exist, with new vectors."""
    _load(connection, layout, layout.vectors("new"), ids, vectors)
    tail = sql.SQL("JOIN {} i ON i.key = r.{}").format(_INCOMING, sql.Identifier(layout.key.name))
    _write_rows(connection, layout, sql.SQL("i.vector").format(), tail, [], replace=replace)


def apply_changes(
    connection: StoreConnection, layout: PgLayout, changes: Changes, vectors: StoreVectors
) -> bool:
    """Repeat changes in the other table. Returns False, and writes nothing, if some do not wait.

    A row without a vector that can be translated gets an empty one, and stays visible.
    """
    state, numbers, other = layout.state, changes.token, layout.other
    if state is None or not numbers:
        return True
    if not claim(connection, state, layout.table.schema, numbers):
        return False
    _load(connection, layout, other, changes.ids, vectors)
    names = {
        "other": other.relation.identifier,
        "key": sql.Identifier(other.key),
        "column": sql.Identifier(other.column),
        "seen": layout.seen.relation.identifier,
        "queue": sql.Identifier(layout.table.schema, state.queue),
        "type": key_type(layout.kind),
        "incoming": _INCOMING,
        "empty": _empty_vector(connection, other),
    }
    keys = stored_keys([*changes.ids, *changes.deleted], layout.kind)
    connection.run(
        "DELETE FROM {other} o WHERE (%s OR o.{key} = ANY(%s::{type}[])) "
        "AND NOT EXISTS (SELECT FROM {seen} s WHERE s.{key} = o.{key})",
        params=[changes.truncated, keys],
        **names,
    )
    vector, values = sql.SQL("coalesce(i.vector, {empty})").format(**names), [keys]
    if state.phase != "prepared":
        # A change of other columns must not replace a vector that clients wrote by a translation.
        vector = sql.SQL(
            "coalesce(CASE WHEN (SELECT bool_and(q.rows_only) FROM {queue} q WHERE "
            "q.key = r.{key} AND q.seq = ANY(%s)) THEN coalesce("
            "(SELECT o.{column} FROM {other} o WHERE o.{key} = r.{key}), "
            "(SELECT q.vector::{stored} FROM {queue} q WHERE q.key = r.{key} "
            "AND q.vector IS NOT NULL ORDER BY q.seq LIMIT 1)) END, i.vector, {empty})"
        ).format(stored=sql.Identifier(connection.extension, other.type_name), **names)
        values = [numbers, keys]
    tail = sql.SQL(
        "LEFT JOIN {incoming} i ON i.key = r.{key} WHERE r.{key} = ANY(%s::{type}[])"
    ).format(**names)
    _write_rows(connection, layout, vector, tail, values, replace=True)
    acknowledge(connection, state, layout.table.schema, numbers)
    return True


def copy_missing(connection: StoreConnection, layout: PgLayout) -> None:
    """Copy the rows that the other table lacks, with empty vectors. `apply` copies what waits."""
    other, state = layout.other, layout.state
    assert state is not None
    tail = sql.SQL(
        "WHERE NOT EXISTS (SELECT FROM {other} o WHERE o.{key} = r.{key}) "
        "AND NOT EXISTS (SELECT FROM {queue} q WHERE q.key = r.{key})"
    ).format(
        other=other.relation.identifier,
        queue=sql.Identifier(layout.table.schema, state.queue),
        key=sql.Identifier(other.key),
    )
    _write_rows(connection, layout, _empty_vector(connection, other), tail, [], replace=False)


def table_files(connection: StoreConnection, layout: PgLayout) -> list[list[int]]:
    """Return numbers of both tables that change when PostgreSQL rewrites one, or adds a column."""
    row = connection.execute(
        "SELECT array_agg(ARRAY[pg_relation_filenode(oid)::bigint, relnatts] ORDER BY oid <> %s) "
        "FROM pg_class WHERE oid IN (%s, %s)",
        [layout.old.relation.oid, layout.old.relation.oid, layout.vectors("new").relation.oid],
    ).fetchone()
    return [] if row is None else row[0]


def requeue_different(connection: StoreConnection, layout: PgLayout) -> int | None:
    """Queue each row of the other table that differs, although no change of it waits.

    Returns the number of rows; None while a TRUNCATE waits, before which nothing can be compared.
    """
    state, other = layout.state, layout.other
    assert state is not None
    names: dict[str, sql.Composable] = {
        "queue": sql.Identifier(layout.table.schema, state.queue),
        "seen": layout.table.identifier,
        "other": other.relation.identifier,
        "key": sql.Identifier(other.key),
    }
    for side in ("s", "o"):
        columns = [sql.Identifier(side, name) for name in (other.key, *sorted(layout.payload))]
        names[f"row_{side}"] = sql.SQL("ROW({})::text").format(sql.SQL(", ").join(columns))
    waits = connection.run("SELECT 1 FROM {queue} WHERE key IS NULL LIMIT 1", **names).fetchone()
    if waits is not None:
        return None
    return connection.run(
        "INSERT INTO {queue} (key, rows_only) SELECT o.{key}, true FROM {other} o "
        "LEFT JOIN {seen} s ON s.{key} = o.{key} WHERE {row_o} IS DISTINCT FROM {row_s} "
        "AND o.{key} NOT IN (SELECT key FROM {queue} WHERE key IS NOT NULL)",
        **names,
    ).rowcount


def delete_waiting(connection: StoreConnection, layout: PgLayout) -> None:
    """Delete rows of the other table with an entry in the queue: `apply` brings them back.

    The entry keeps the vector of its row.
    """
    other, state = layout.other, layout.state
    assert state is not None
    connection.run(
        "WITH deleted AS (DELETE FROM {other} o USING {queue} q WHERE q.key = o.{key} "
        "RETURNING o.{key} AS key, o.{column} AS vector) "
        "UPDATE {queue} q SET vector = d.vector::real[] FROM deleted d WHERE q.key = d.key",
        other=other.relation.identifier,
        queue=sql.Identifier(other.relation.schema, state.queue),
        key=other.key,
        column=other.column,
    )


def _load(
    connection: StoreConnection,
    layout: PgLayout,
    target: PgVectors,
    ids: Sequence[StoreId],
    vectors: StoreVectors,
) -> None:
    """Load vectors for `target` into a table of this transaction."""
    if len(ids) and vectors.shape != (len(ids), target.dim or vectors.shape[1]):
        raise DimensionMismatch(
            f"Vectors of shape {vectors.shape} were written for {len(ids)} rows of {target.dim} "
            "dimensions. Translate them to the target encoder."
        )
    # PostgreSQL takes the new table for a large one: its join would read the client's whole table.
    for option in ("enable_hashjoin", "enable_mergejoin"):
        connection.run("SET LOCAL {} = off", option)
    connection.run(
        "CREATE TEMPORARY TABLE anchorage_incoming (key {}, vector {}) ON COMMIT DROP",
        key_type(layout.kind),
        sql.Identifier(connection.extension, target.type_name),
    )
    if len(ids):
        with connection.cursor().copy(
            sql.SQL("COPY {} FROM STDIN BINARY").format(_INCOMING)
        ) as copy:
            copy.write(copy_bytes(ids, vectors, layout.kind, target.type_name))


def _empty_vector(connection: StoreConnection, other: PgVectors) -> sql.Composable:
    """The vector of rows without one: NULL, or zeros where the column must not be NULL."""
    if not other.relation.column(other.column).not_null:
        return sql.SQL("NULL").format()
    return zero_vector(connection.extension, other.type_name, other.dim)


def _write_rows(
    connection: StoreConnection,
    layout: PgLayout,
    vector: sql.Composable,
    tail: sql.Composable,
    values: list[Any],
    *,
    replace: bool,
) -> None:
    """Copy rows `r` that clients see to the other table, each with `vector`."""
    other, seen = layout.other, layout.seen.relation
    names = {each.name for each in seen.columns} - {other.column}
    columns = [e for e in other.relation.columns if e.name in names and not e.generated]
    changed = [each.name for each in columns if each.identity != "a"] + [other.column]
    update = sql.SQL(", ").join(
        sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(each)) for each in changed
    )
    statement = sql.SQL(
        "INSERT INTO {other} ({columns}, {column}) OVERRIDING SYSTEM VALUE "
        "SELECT {rows}, {vector} FROM {seen} r {tail} ON CONFLICT ({key}) DO {conflict}"
    ).format(
        other=other.relation.identifier,
        columns=sql.SQL(", ").join(sql.Identifier(each.name) for each in columns),
        column=sql.Identifier(other.column),
        rows=sql.SQL(", ").join(sql.Identifier("r", each.name) for each in columns),
        vector=vector,
        seen=seen.identifier,
        tail=tail,
        key=sql.Identifier(other.key),
        conflict=sql.SQL("UPDATE SET {}").format(update) if replace else sql.SQL("NOTHING"),
    )
    for _ in range(WRITE_ATTEMPTS):
        try:
            with connection.transaction():
                connection.execute(statement, values)
            return
        except psycopg.errors.UniqueViolation:
            delete_waiting(connection, layout)
    raise StoreUnavailable(
        "Clients move unique values between rows faster than they can be copied. Try again."
    )
