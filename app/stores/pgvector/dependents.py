"""What depends on a table: views, which are created again, and obstacles to a reindexing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from app.stores.base import StoreNote
from app.stores.pgvector.connections import StoreConnection
from app.stores.pgvector.layout import PgLayout
from app.stores.pgvector.limits import SWAP_OBSTACLES

_VIEWS = """
WITH RECURSIVE found(oid, depth) AS (
  SELECT r.ev_class, 1 FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid
  WHERE d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_class'::regclass
    AND d.refobjid = %s AND r.ev_class <> d.refobjid
  UNION
  SELECT r.ev_class, f.depth + 1 FROM found f
  JOIN pg_depend d ON d.refobjid = f.oid AND d.refclassid = 'pg_class'::regclass
  JOIN pg_rewrite r ON r.oid = d.objid AND d.classid = 'pg_rewrite'::regclass
  WHERE r.ev_class <> f.oid AND f.depth < 50)
SELECT c.oid::bigint, n.nspname, c.relname, c.relkind::text, pg_get_viewdef(c.oid),
  pg_get_userbyid(c.relowner), coalesce(c.reloptions, '{}')::text[],
  obj_description(c.oid, 'pg_class'), max(f.depth),
  EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid)
FROM found f JOIN pg_class c ON c.oid = f.oid JOIN pg_namespace n ON n.oid = c.relnamespace
GROUP BY c.oid, n.nspname, c.relname ORDER BY max(f.depth), c.oid"""

_GRANTS = """
SELECT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END,
  a.privilege_type, a.is_grantable
FROM pg_class c, aclexplode(c.relacl) a WHERE c.oid = %s AND a.grantee <> c.relowner"""

_INVOKER = ("security_invoker=true", "security_invoker=on", "security_invoker=1")

_OBSTACLES = """
SELECT 'partitioned', 'The table is partitioned or inherits. Reindex each partition as a store.'
  WHERE %(partitioned)s
UNION ALL SELECT 'functions', 'The function ' || d.objid::regprocedure ||
  ' depends on the type of the table. Drop it, and create it again after the reindexing.'
  FROM pg_depend d JOIN pg_class c ON d.refobjid IN (c.oid, c.reltype)
  WHERE c.oid = %(oid)s AND d.classid = 'pg_proc'::regclass
UNION ALL SELECT 'materialized-views', 'The materialized view ' || r.ev_class::regclass ||
  ' reads the table. Drop it, and create it again after the reindexing.'
  FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid AND d.classid = 'pg_rewrite'::regclass
  JOIN pg_class v ON v.oid = r.ev_class
  WHERE d.refobjid = %(oid)s AND v.relkind = 'm' GROUP BY r.ev_class
UNION ALL SELECT 'triggers', 'The trigger ' || quote_ident(t.tgname) ||
  ' reads the column of vectors. Drop it for the reindexing, or create it without the column.'
  FROM pg_trigger t JOIN pg_attribute a ON a.attrelid = t.tgrelid AND a.attname = %(column)s
  WHERE t.tgrelid = %(oid)s AND NOT t.tgisinternal AND a.attnum = ANY(t.tgattr)
    AND NOT starts_with(t.tgname, 'anchorage_')
UNION ALL SELECT 'column-grants', 'Rights on single columns of the table are not copied. ' ||
  'Grant them on the table, or revoke them.'
  WHERE EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = %(oid)s AND a.attacl IS NOT NULL)
UNION ALL SELECT 'generated-columns', 'The column ' || quote_ident(a.attname) ||
  ' is computed from the vectors. Drop it for the reindexing.'
  FROM pg_depend d JOIN pg_attrdef f ON f.oid = d.objid AND d.classid = 'pg_attrdef'::regclass
  JOIN pg_attribute a ON a.attrelid = f.adrelid AND a.attnum = f.adnum
  JOIN pg_attribute v ON v.attrelid = f.adrelid AND v.attnum = d.refobjsubid
  WHERE d.refobjid = %(oid)s AND v.attname = %(column)s AND a.attgenerated <> ''
UNION ALL SELECT 'rules', 'The rule ' || quote_ident(r.rulename) ||
  ' rewrites statements on the table. Drop it for the reindexing.'
  FROM pg_rewrite r WHERE r.ev_class = %(oid)s AND r.rulename <> '_RETURN'"""


@dataclass(frozen=True)
class DependentView:
    """A view that reads the collection, with the statements that create it again."""

    identifier: sql.Identifier
    statements: tuple[sql.Composed, ...]


def obstacles(connection: StoreConnection, layout: PgLayout, strategy: str) -> list[StoreNote]:
    """Return what forbids a reindexing of this table by this strategy."""
    rows = layout.rows
    values = {
        "oid": rows.oid,
        "column": layout.old.column if layout.old.relation.oid == rows.oid else "",
        "partitioned": rows.kind == "p" or rows.inherits,
    }
    found = [StoreNote(*row) for row in connection.execute(_OBSTACLES, values)]
    if strategy == "swap":
        found += [StoreNote(*row) for row in connection.execute(SWAP_OBSTACLES, values)]
        if layout.is_view:
            found.append(StoreNote("swap-of-a-view", "Only `side` can move the vectors again."))
    views = connection.execute(_VIEWS, [layout.table.oid]).fetchall()
    found += [
        StoreNote(
            "view-with-triggers",
            f"The view {row[2]!r} reads the table and has triggers. Drop the view, and create it "
            "again after the reindexing.",
        )
        for row in views
        if row[9]
    ]
    found += [
        StoreNote(
            "definer-views",
            f"The view {row[2]!r} shows the table to other roles with the rights of its owner, "
            "which it cannot when the table becomes a view. Create it with security_invoker, and "
            "grant these roles SELECT on the table.",
        )
        for row in views
        if strategy == "side"
        and row[3] == "v"
        and grants(connection, row[0], sql.Identifier(row[2]))
        and not any(each in _INVOKER for each in row[6])
    ]
    return found


def grants(connection: StoreConnection, oid: int, target: sql.Composable) -> list[sql.Composed]:
    """Return statements that grant on `target` what is granted on the relation `oid`."""
    return [
        sql.SQL("GRANT {} ON {} TO {}{}").format(
            sql.SQL(privilege),
            target,
            sql.SQL(grantee),
            sql.SQL(" WITH GRANT OPTION" if grantable else ""),
        )
        for grantee, privilege, grantable in connection.execute(_GRANTS, [oid]).fetchall()
    ]


def dependent_views(connection: StoreConnection, oid: int) -> Sequence[DependentView]:
    """Return the views that read the relation, each after those that it reads."""
    found = []
    for row in connection.execute(_VIEWS, [oid]).fetchall():
        view, schema, name, _, text, owner, options, remark = row[:8]
        identifier = sql.Identifier(schema, name)
        storage = sql.SQL(f" WITH ({', '.join(options)})" if options else "")
        statements: list[sql.Composed] = [
            sql.SQL("CREATE VIEW {}{} AS {}").format(identifier, storage, sql.SQL(text)),
            sql.SQL("ALTER VIEW {} OWNER TO {}").format(identifier, sql.Identifier(owner)),
            *grants(connection, view, identifier),
        ]
        if remark is not None:
            statements.append(
                sql.SQL("COMMENT ON VIEW {} IS {}").format(identifier, sql.Literal(remark))
            )
        found.append(DependentView(identifier, tuple(statements)))
    return found


def drop_views(connection: StoreConnection, views: Sequence[DependentView]) -> None:
    for each in reversed(views):
        connection.execute(sql.SQL("DROP VIEW {}").format(each.identifier))


def create_views(connection: StoreConnection, views: Sequence[DependentView]) -> None:
    for each in views:
        for statement in each.statements:
            connection.execute(statement)
