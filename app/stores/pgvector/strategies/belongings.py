"""What belongs to a table besides its rows and indexes, and moves to the table that replaces it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from app.stores.pgvector.catalogue import PgRelation
from app.stores.pgvector.connections import StoreConnection
from app.stores.pgvector.dependents import grants
from app.stores.pgvector.strategies.twins import exchange

_POLICIES = """
SELECT p.polname, format('CREATE POLICY %%I ON %%I.%%I AS %%s FOR %%s TO %%s', p.polname, n.nspname,
    c.relname, CASE WHEN p.polpermissive THEN 'PERMISSIVE' ELSE 'RESTRICTIVE' END,
    CASE p.polcmd WHEN 'r' THEN 'SELECT' WHEN 'a' THEN 'INSERT' WHEN 'w' THEN 'UPDATE'
      WHEN 'd' THEN 'DELETE' ELSE 'ALL' END,
    (SELECT string_agg(CASE WHEN r = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(r)) END, ', ')
      FROM unnest(p.polroles) r))
  || coalesce(' USING (' || pg_get_expr(p.polqual, p.polrelid) || ')', '')
  || coalesce(' WITH CHECK (' || pg_get_expr(p.polwithcheck, p.polrelid) || ')', '')
FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE p.polrelid = %s"""

_TRIGGERS_OF = """
SELECT tgname, pg_get_triggerdef(oid), tgenabled::text FROM pg_trigger
WHERE tgrelid = %s AND NOT tgisinternal ORDER BY oid"""

_MODES = {"R": "ENABLE REPLICA", "A": "ENABLE ALWAYS", "D": "DISABLE"}

_FOREIGN_KEYS = """
SELECT n.nspname, c.relname, k.conname, pg_get_constraintdef(k.oid), k.convalidated
FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE k.contype = 'f' AND %s IN (k.conrelid, k.confrelid) AND k.conparentid = 0 ORDER BY k.oid"""

_SEQUENCES = """
SELECT a.attname, n.nspname, s.relname, d.deptype = 'i', s.oid::bigint
FROM pg_depend d JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S'
JOIN pg_namespace n ON n.oid = s.relnamespace
JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
  AND d.refobjid = %s AND d.deptype IN ('a', 'i') ORDER BY a.attnum"""


@dataclass(frozen=True)
class Belongings:
    """Statements that create again what was taken from a table, for a table of its name.

    foreign_keys  (schema, table, name) of those that were valid
    """

    statements: Sequence[sql.SQL | sql.Composed]
    foreign_keys: Sequence[Sequence[str]]


def take(connection: StoreConnection, table: PgRelation) -> Belongings:
    """Drop the table's foreign keys in both directions, policies and triggers, and return them."""
    statements: list[sql.SQL | sql.Composed] = []
    valid = []
    for name, text in connection.execute(_POLICIES, [table.oid]).fetchall():
        statements.append(sql.SQL(text))
        connection.execute(
            sql.SQL("DROP POLICY {} ON {}").format(sql.Identifier(name), table.identifier)
        )
    for name, text, mode in connection.execute(_TRIGGERS_OF, [table.oid]).fetchall():
        names = {"trigger": sql.Identifier(name), "table": table.identifier}
        statements.append(sql.SQL(text))
        if mode in _MODES:
            statements.append(
                sql.SQL("ALTER TABLE {table} {mode} TRIGGER {trigger}").format(
                    mode=sql.SQL(_MODES[mode]), **names
                )
            )
        connection.execute(sql.SQL("DROP TRIGGER {trigger} ON {table}").format(**names))
    keys = connection.execute(_FOREIGN_KEYS, [table.oid]).fetchall()
    for schema, name, key, text, validated in keys:
        names = {"table": sql.Identifier(schema, name), "key": sql.Identifier(key)}
        wait = "" if text.endswith(("NOT VALID", "NOT ENFORCED")) else " NOT VALID"
        statements.append(
            sql.SQL("ALTER TABLE {table} ADD CONSTRAINT {key} {text}").format(
                text=sql.SQL(text + wait), **names
            )
        )
        if validated:
            valid.append((schema, name, key))
        connection.execute(sql.SQL("ALTER TABLE {table} DROP CONSTRAINT {key}").format(**names))
    return Belongings(statements, valid)


def copy_rights(connection: StoreConnection, front: PgRelation, back: PgRelation) -> None:
    """Give `back` the owner, the rights, the switches of row security and the comment."""
    target = back.identifier
    row = connection.execute("SELECT obj_description(%s, 'pg_class')", [front.oid]).fetchone()
    remark = sql.Literal(None if row is None else row[0])
    row_security = "ENABLE" if front.row_security else "DISABLE"
    forced = "FORCE" if front.force_row_security else "NO FORCE"
    connection.execute(
        sql.SQL("ALTER TABLE {} OWNER TO {}").format(target, sql.Identifier(front.owner))
    )
    _copy_grants(connection, front.oid, back.oid, target)
    for statement in (
        sql.SQL("ALTER TABLE {} {} ROW LEVEL SECURITY").format(target, sql.SQL(row_security)),
        sql.SQL("ALTER TABLE {} {} ROW LEVEL SECURITY").format(target, sql.SQL(forced)),
        sql.SQL("COMMENT ON TABLE {} IS {}").format(target, remark),
    ):
        connection.execute(statement)


def _copy_grants(
    connection: StoreConnection, front: int, back: int, target: sql.Composable
) -> None:
    others = connection.execute(
        "SELECT DISTINCT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE "
        "quote_ident(pg_get_userbyid(a.grantee)) END FROM pg_class c, aclexplode(c.relacl) a "
        "WHERE c.oid = %s AND a.grantee <> c.relowner",
        [back],
    ).fetchall()
    for [role] in others:
        connection.execute(sql.SQL("REVOKE ALL ON {} FROM {}").format(target, sql.SQL(role)))
    for statement in grants(connection, front, target):
        connection.execute(statement)


def move_sequences(
    connection: StoreConnection, tag: str, front: PgRelation, back: PgRelation, back_now: PgRelation
) -> None:
    """Make the sequences of `front` continue in `back`, which has the name `back_now`.

    A serial's sequence changes its owner. An identity has its own sequence in each table.
    """
    hidden: dict[str, Any] = {
        row[0]: row[1:] for row in connection.execute(_SEQUENCES, [back.oid]).fetchall() if row[3]
    }
    for column, schema, name, identity, oid in connection.execute(
        _SEQUENCES, [front.oid]
    ).fetchall():
        sequence = sql.Identifier(schema, name)
        if not identity:
            connection.execute(
                sql.SQL("ALTER SEQUENCE {} OWNED BY {}").format(
                    sequence, sql.Identifier(back_now.schema, back_now.name, column)
                )
            )
            continue
        other = sql.Identifier(hidden[column][0], hidden[column][1])
        connection.execute(
            sql.SQL("SELECT setval({}::regclass, last_value, is_called) FROM {}").format(
                sql.Literal(other.as_string(connection)), sequence
            )
        )
        _copy_grants(connection, oid, hidden[column][3], sql.SQL("SEQUENCE {}").format(other))
        exchange(connection, "SEQUENCE", schema, (name, hidden[column][1]), tag)


def give(connection: StoreConnection, belongings: Belongings) -> None:
    for each in belongings.statements:
        connection.execute(each)


def validate(connection: StoreConnection, keys: Sequence[Sequence[str]]) -> None:
    """Validate foreign keys, while clients write."""
    for schema, table, key in keys:
        row = connection.execute(
            "SELECT k.convalidated FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid "
            "JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relname = %s AND k.conname = %s",
            [schema, table, key],
        ).fetchone()
        if row is not None and not row[0]:
            connection.execute(
                sql.SQL("ALTER TABLE {} VALIDATE CONSTRAINT {}").format(
                    sql.Identifier(schema, table), sql.Identifier(key)
                )
            )
