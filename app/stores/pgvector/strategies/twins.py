"""Gives a second table the indexes of the first, under hidden names until both are exchanged."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass

import psycopg
from psycopg import sql

from app.errors import StoreChanged, StoreUnsupported
from app.stores.pgvector.catalogue import PgRelation
from app.stores.pgvector.connections import StoreConnection
from app.stores.pgvector.layout import name_of

_TABLE_INDEXES = """
SELECT x.relname, pg_get_indexdef(i.indexrelid), format('CREATE %%sINDEX %%I ON %%I.%%I USING ',
  CASE WHEN i.indisunique THEN 'UNIQUE ' ELSE '' END, x.relname, n.nspname, c.relname),
  i.indisunique, coalesce(k.contype::text, ''), coalesce(k.condeferrable, false),
  coalesce(k.condeferred, false), array(SELECT a.attname::text FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attnum = ANY(i.indkey[0:i.indnkeyatts - 1])),
  i.indpred IS NULL AND i.indexprs IS NULL AND i.indimmediate
FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_class c ON c.oid = i.indrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_constraint k ON k.conindid = x.oid AND k.conrelid = c.oid AND k.contype IN ('p', 'u')
WHERE i.indrelid = %s AND i.indisvalid ORDER BY i.indexrelid"""


@dataclass(frozen=True)
class TwinIndex:
    """An index of the table that clients see. tail: its definition from USING on."""

    name: str
    tail: str
    unique: bool
    constraint: str
    deferrable: bool
    deferred: bool
    columns: tuple[str, ...]
    plain: bool

    def hidden(self, tag: str) -> str:
        """The name of the same index of the other table."""
        digest = hashlib.sha256(self.name.encode()).hexdigest()[:16]
        return name_of(tag, f"twin_{digest}")

    def is_of_key(self, key: str) -> bool:
        return self.unique and self.plain and self.columns == (key,)


def twin_indexes(connection: StoreConnection, table: PgRelation) -> list[TwinIndex]:
    found = []
    for row in connection.execute(_TABLE_INDEXES, [table.oid]).fetchall():
        name, definition, beginning = row[:3]
        if not definition.startswith(beginning):
            raise StoreUnsupported(f"The index {name!r} cannot be copied. Choose `side`.")
        tail = definition.removeprefix(beginning)
        found.append(TwinIndex(*[name, tail, *row[3:7], tuple(row[7]), row[8]]))
    return found


def build_twins(
    connection: StoreConnection,
    tag: str,
    front: PgRelation,
    back: PgRelation,
    type_name: str,
    only_key: str | None,
    resolve: Callable[[], object],
) -> None:
    """Build what `back` lacks of the indexes of `front`, and drop what it has too much.

    only_key  only the unique index of this column
    resolve   deletes rows of `back` that are older than those of `front`
    """
    present = {each.name for each in twin_indexes(connection, back)}
    wanted = twin_indexes(connection, front)
    if only_key is not None:
        wanted = [each for each in wanted if each.is_of_key(only_key)][:1]
    for each in wanted:
        hidden = each.hidden(tag)
        if hidden in present:
            present.remove(hidden)
            continue
        with connection.transaction():
            try:
                with connection.transaction():
                    _build(connection, each, hidden, back, type_name)
            except psycopg.errors.UniqueViolation:
                resolve()
                _build(connection, each, hidden, back, type_name)
    for name in present if only_key is None else ():
        _drop(connection, back, name)


def _build(
    connection: StoreConnection, index: TwinIndex, hidden: str, back: PgRelation, type_name: str
) -> None:
    tail = re.sub(r"\b(?:vector|halfvec)_(\w+_ops)\b", type_name + r"_\1", index.tail)
    name = sql.Identifier(hidden)
    connection.execute(
        sql.SQL("CREATE {} INDEX {} ON {} USING {}").format(
            sql.SQL("UNIQUE" if index.unique else ""),
            name,
            back.identifier,
            sql.SQL(tail),  # the catalogue writes it
        )
    )
    if index.constraint:
        connection.execute(
            sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} {} USING INDEX {} {}").format(
                back.identifier,
                name,
                sql.SQL("PRIMARY KEY" if index.constraint == "p" else "UNIQUE"),
                name,
                sql.SQL(
                    ("DEFERRABLE" if index.deferrable else "")
                    + (" INITIALLY DEFERRED" if index.deferred else "")
                ),
            )
        )


def _drop(connection: StoreConnection, table: PgRelation, name: str) -> None:
    for statement in (
        sql.SQL("ALTER TABLE {} DROP CONSTRAINT IF EXISTS {}").format(
            table.identifier, sql.Identifier(name)
        ),
        sql.SQL("DROP INDEX IF EXISTS {}").format(sql.Identifier(table.schema, name)),
    ):
        connection.execute(statement)


def exchange_names(
    connection: StoreConnection, tag: str, front: PgRelation, back: PgRelation
) -> None:
    """Exchange the names of the indexes of both tables. Raises StoreChanged."""
    wanted = twin_indexes(connection, front)
    present = {each.name for each in twin_indexes(connection, back)}
    if {each.hidden(tag) for each in wanted} != present:
        raise StoreChanged(
            f"The indexes of {front.name!r} changed while the tables were to be exchanged. Try "
            "again."
        )
    for each in wanted:
        exchange(connection, "INDEX", front.schema, (each.name, each.hidden(tag)), tag)


def exchange(
    connection: StoreConnection, kind: str, schema: str, names: tuple[str, str], tag: str
) -> None:
    """Exchange two names of relations of one kind."""
    between = name_of(tag, "between")
    for old, new in ((names[0], between), (names[1], names[0]), (between, names[1])):
        connection.execute(
            sql.SQL("ALTER {} {} RENAME TO {}").format(
                sql.SQL(kind), sql.Identifier(schema, old), sql.Identifier(new)
            )
        )
