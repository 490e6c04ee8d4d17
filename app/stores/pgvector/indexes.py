"""Indexes of the table that clients see, and their copies on the other one.

Copies have hidden names, until a switch exchanges the names of each pair.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

import psycopg
from psycopg import sql

from app.errors import StoreUnsupported
from app.stores.pgvector.connections import StoreConnection
from app.stores.pgvector.copying import delete_waiting
from app.stores.pgvector.layout import PgLayout, PgRelation, PgState, PgVectors, name_of

_TABLE_INDEXES = """
SELECT x.relname, pg_get_indexdef(i.indexrelid), format('CREATE %%sINDEX %%I ON %%I.%%I USING ',
  CASE WHEN i.indisunique THEN 'UNIQUE ' ELSE '' END, x.relname, n.nspname, c.relname),
  i.indisunique, CASE k.contype WHEN 'p' THEN 'PRIMARY KEY' WHEN 'u' THEN 'UNIQUE' END
    || ' USING INDEX %%s' || CASE WHEN k.condeferrable THEN ' DEFERRABLE' ELSE '' END
    || CASE WHEN k.condeferred THEN ' INITIALLY DEFERRED' ELSE '' END,
  array(SELECT a.attname::text FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attnum = ANY(i.indkey[0:i.indnkeyatts - 1])),
  i.indpred IS NULL AND i.indexprs IS NULL AND i.indimmediate
FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_class c ON c.oid = i.indrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_constraint k ON k.conindid = x.oid AND k.conrelid = c.oid AND k.contype IN ('p', 'u')
WHERE i.indrelid = %s AND i.indisvalid ORDER BY i.indexrelid"""


@dataclass(frozen=True)
class _Index:
    """tail: the definition from USING on; constraint: what makes one of it, if it is one."""

    name: str
    tail: str
    unique: bool
    constraint: str | None
    columns: list[str]
    plain: bool

    def hidden(self, tag: str) -> str:
        """The name of the same index of the other table."""
        tail = re.sub(r"\bhalfvec_(\w+_ops)\b", r"vector_\1", self.tail)
        content = repr((self.name, tail, self.unique, self.constraint))
        digest = hashlib.sha256(content.encode()).hexdigest()[:16]
        return name_of(tag, f"index_{digest}")


def _indexes(connection: StoreConnection, table: PgRelation) -> list[_Index]:
    found = []
    for name, text, beginning, *rest in connection.execute(_TABLE_INDEXES, [table.oid]).fetchall():
        if text is None:
            continue  # a client dropped the index while the query ran
        if not text.startswith(beginning):
            raise StoreUnsupported(
                f"The index {name!r} cannot be copied. Drop it for the migration."
            )
        found.append(_Index(name, text.removeprefix(beginning), *rest))
    return found


def copy_key_index(connection: StoreConnection, layout: PgLayout, tag: str) -> None:
    """Build the unique index of the key in a new copy of the table."""
    key = [layout.seen.key]
    indexes = _indexes(connection, layout.table)
    first = next(each for each in indexes if each.unique and each.plain and each.columns == key)
    _build(connection, first, tag, layout.other)


def copy_indexes(connection: StoreConnection, layout: PgLayout, state: PgState) -> None:
    """Build what the other table lacks of the indexes that clients see, and drop other ones."""
    back, tag = layout.other.relation, state.tag
    present = {each.name for each in _indexes(connection, back)}
    for each in _indexes(connection, layout.table):
        if each.hidden(tag) in present:
            present.remove(each.hidden(tag))
            continue
        with connection.transaction():
            try:
                with connection.transaction():
                    _build(connection, each, tag, layout.other)
            except psycopg.errors.UniqueViolation:
                delete_waiting(connection, layout, state)
                _build(connection, each, tag, layout.other)
    for name in present:
        connection.run("ALTER TABLE {} DROP CONSTRAINT IF EXISTS {}", back.identifier, name)
        connection.run("DROP INDEX IF EXISTS {}", sql.Identifier(back.schema, name))


def _build(connection: StoreConnection, index: _Index, tag: str, back: PgVectors) -> None:
    table, name = back.relation.identifier, sql.Identifier(index.hidden(tag))
    unique, tail = sql.SQL("UNIQUE" if index.unique else ""), index.tail
    if back.column in index.columns:
        tail = re.sub(r"\b(?:vector|halfvec)_(\w+_ops)\b", back.type_name + r"_\1", tail)
    connection.run("CREATE {} INDEX {} ON {} USING {}", unique, name, table, sql.SQL(tail))
    if index.constraint is not None:
        constraint = sql.SQL(index.constraint % name.as_string(connection))
        connection.run("ALTER TABLE {} ADD CONSTRAINT {} {}", table, name, constraint)


def has_same_indexes(connection: StoreConnection, layout: PgLayout, tag: str) -> bool:
    """Return whether the other table has a copy of each index that clients see, and no other."""
    present = {each.name for each in _indexes(connection, layout.other.relation)}
    return present == {each.hidden(tag) for each in _indexes(connection, layout.table)}


def exchange_index_names(connection: StoreConnection, tag: str, front: PgRelation) -> None:
    """Exchange the names of the indexes of both tables. front: the one whose names are hidden."""
    between = name_of(tag, "between")
    for each in _indexes(connection, front):
        hidden = each.hidden(tag)
        for old, new in ((each.name, between), (hidden, each.name), (between, hidden)):
            connection.run("ALTER INDEX {} RENAME TO {}", sql.Identifier(front.schema, old), new)
