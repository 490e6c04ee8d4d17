"""Builds indexes of new vectors, and renames what has the tag of a reindexing in its name."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from psycopg import sql

from app.stores.pgvector.catalogue import PgRelation, load_relation
from app.stores.pgvector.connections import StoreConnection
from app.stores.pgvector.layout import PgVectors, name_of

#: how often to look whether another build has ended
BUILD_POLL_S = 0.5


def build_vector_index(
    connection: StoreConnection,
    new: PgVectors,
    name: str,
    index: Sequence[Any],
    type_name: str,
) -> None:
    """Build an index concurrently, like the one of the old vectors, unless it exists.

    The server continues a build whose client was killed: this waits for it, and uses the index.
    """
    _wait_for_build(connection, new)
    method, schema, operators, options = index
    identifier = sql.Identifier(new.relation.schema, name)
    row = connection.execute(
        "SELECT i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
        "WHERE i.indrelid = %s AND c.relname = %s",
        [new.relation.oid, name],
    ).fetchone()
    if row is not None and row[0]:
        return
    if row is not None:  # a build that was interrupted
        connection.execute(sql.SQL("DROP INDEX CONCURRENTLY {}").format(identifier))
    operators = type_name + "_" + operators.split("_", 1)[1]
    connection.execute(
        sql.SQL("CREATE INDEX CONCURRENTLY {} ON {} USING {} ({} {}){}").format(
            sql.Identifier(name),
            new.relation.identifier,
            sql.Identifier(method),
            sql.Identifier(new.column),
            sql.Identifier(schema, operators),
            sql.SQL(f" WITH ({', '.join(options)})" if options else ""),
        )
    )


def _wait_for_build(connection: StoreConnection, new: PgVectors) -> None:
    while connection.execute(
        "SELECT 1 FROM pg_stat_progress_create_index WHERE relid = %s", [new.relation.oid]
    ).fetchone():
        time.sleep(BUILD_POLL_S)


def free_names(connection: StoreConnection, schema: str, name: str, tag: str) -> tuple[str, str]:
    """Return names for the rows and the vectors that no relation of the schema has."""
    short = name.encode()[:48].decode(errors="ignore")
    for number in range(100):
        names = [f"{short}_{part}{number or ''}" for part in ("rows", "vectors")]
        row = connection.execute(
            "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relname = ANY(%s)",
            [schema, names],
        ).fetchone()
        if row is not None and not row[0]:
            return names[0], names[1]
    return name_of(tag, "rows"), name_of(tag, "vectors")


def rename_tagged(connection: StoreConnection, tag: str, table: PgRelation, name: str) -> None:
    """Rename a table, and its indexes and constraints whose names have the tag."""
    prefix = f"anchorage_{tag}"
    connection.execute(
        sql.SQL("ALTER TABLE {} RENAME TO {}").format(table.identifier, sql.Identifier(name))
    )
    present = load_relation(connection, table.oid).identifier
    rows = connection.execute(
        "SELECT conname FROM pg_constraint WHERE conrelid = %s AND starts_with(conname, %s)",
        [table.oid, prefix],
    ).fetchall()
    for [each] in rows:
        new = sql.Identifier(name + each.removeprefix(prefix).removeprefix("_new"))
        connection.execute(
            sql.SQL("ALTER TABLE {} RENAME CONSTRAINT {} TO {}").format(
                present, sql.Identifier(each), new
            )
        )
    rows = connection.execute(
        "SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
        "WHERE i.indrelid = %s AND starts_with(c.relname, %s)",
        [table.oid, prefix],
    ).fetchall()
    for [each] in rows:
        connection.execute(
            sql.SQL("ALTER INDEX {} RENAME TO {}").format(
                sql.Identifier(table.schema, each),
                sql.Identifier(name + each.removeprefix(prefix)),
            )
        )
