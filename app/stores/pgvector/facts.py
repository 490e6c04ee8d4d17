"""A table as it is now: which strategies it allows, and what a reindexing requires of it.

What depends on a table are views, which are created again, and obstacles to a reindexing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

from psycopg import sql

from app.errors import StoreChanged, StoreRefused, StoreUnsupported, WrongState
from app.stores.base import StoreFacts, StoreLocation, StoreNote
from app.stores.pgvector.connections import StoreConnection
from app.stores.pgvector.layout import PgLayout, PgState, metric_of, vector_indexes
from app.stores.pgvector.reading import dim_of

#: code and text of each obstacle; parameters: oid and column
SWAP_OBSTACLES: LiteralString = """
WITH t AS (SELECT c.oid, c.relreplident, c.reltype, a.attnum FROM pg_class c
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = %(column)s WHERE c.oid = %(oid)s)
SELECT 'swap-expression-index', 'The index ' || i.indexrelid::regclass || ' computes from the '
  'vectors. Drop it, or choose `side`.' FROM t JOIN pg_index i ON i.indrelid = t.oid
  WHERE i.indexprs IS NOT NULL AND EXISTS (SELECT FROM pg_depend d WHERE d.objid = i.indexrelid
    AND d.refobjid = t.oid AND d.refobjsubid = t.attnum)
UNION ALL SELECT 'swap-constraint', 'The constraint ' || quote_ident(n.conname) || ' checks the '
  'vectors, or is an exclusion. Drop it, or choose `side`.' FROM t JOIN pg_constraint n
  ON n.conrelid = t.oid WHERE n.contype = 'x' OR n.contype = 'c' AND t.attnum = ANY(n.conkey)
UNION ALL SELECT 'swap-default', 'The column of vectors has a default. Drop it, or choose `side`.'
  FROM t JOIN pg_attrdef f ON f.adrelid = t.oid AND f.adnum = t.attnum
UNION ALL SELECT 'swap-publication', 'A publication sends the table, or its replica identity is '
  'not the default. Take it out, or choose `side`.' FROM t WHERE relreplident <> 'd'
  OR EXISTS (SELECT FROM pg_publication_rel p WHERE p.prrelid = t.oid)
UNION ALL SELECT 'swap-statistics', 'The table has extended statistics. Drop them, or choose '
  '`side`.' FROM t WHERE EXISTS (SELECT FROM pg_statistic_ext s WHERE s.stxrelid = t.oid)
UNION ALL SELECT 'swap-policy', 'The policy ' || quote_ident(p.polname) || ' of another table '
  'reads the table. Drop it, or choose `side`.' FROM t JOIN pg_depend d ON d.refobjid = t.oid
  AND d.classid = 'pg_policy'::regclass JOIN pg_policy p ON p.oid = d.objid
  WHERE p.polrelid <> t.oid GROUP BY p.oid, p.polname
UNION ALL SELECT 'swap-foreign-key', 'The foreign key ' || quote_ident(n.conname) || ' belongs to '
  'a partitioned table or to another owner. Drop it, or choose `side`.' FROM t JOIN pg_constraint n
  ON n.confrelid = t.oid AND n.contype = 'f' JOIN pg_class r ON r.oid = n.conrelid
  WHERE r.relkind = 'p' OR NOT pg_has_role(r.relowner, 'USAGE')
UNION ALL SELECT 'swap-row-type', 'The table ' || d.objid::regclass || ' has a column of the row '
  'type. Drop it, or choose `side`.' FROM t JOIN pg_depend d ON d.refobjid = t.reltype
  AND d.refclassid = 'pg_type'::regclass AND d.classid = 'pg_class'::regclass
  WHERE d.objsubid > 0"""


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
        connection.run("DROP VIEW {}", each.identifier)


def create_views(connection: StoreConnection, views: Sequence[DependentView]) -> None:
    for each in views:
        for statement in each.statements:
            connection.execute(statement)


DTYPES = {"vector": "float32", "halfvec": "float16"}


def collection_facts(connection: StoreConnection, layout: PgLayout) -> StoreFacts:
    """Return the collection as clients see it. Raises StoreUnsupported."""
    seen = layout.seen
    row = connection.run(
        "SELECT count({}) FROM {}", seen.column, seen.relation.identifier
    ).fetchone()
    size = connection.execute(
        "SELECT pg_table_size(%s::oid) + coalesce((SELECT sum(pg_relation_size(indexrelid)) FROM "
        "pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam "
        "WHERE i.indrelid = %s::oid AND m.amname IN ('hnsw', 'ivfflat')), 0)",
        [seen.relation.oid, seen.relation.oid],
    ).fetchone()
    assert row is not None
    assert size is not None
    indexes = vector_indexes(connection, seen.relation, seen.column)
    notes, strategies = _notes(connection, layout)
    if any(each.partial for each in indexes):
        notes.append(StoreNote("partial-index", "A partial index of the vectors is not copied."))
    return StoreFacts(
        rows=int(row[0]),
        dim=dim_of(connection, seen),
        metric=metric_of(connection, layout),
        dtype=DTYPES[seen.type_name],
        indexed=bool(indexes),
        strategies=strategies,
        vector_bytes=int(size[0]),
        vector_field=layout.old.column,
        notes=tuple(notes),
    )


def _notes(
    connection: StoreConnection, layout: PgLayout
) -> tuple[list[StoreNote], tuple[str, ...]]:
    notes = [
        StoreNote(
            "view-after-cutover",
            f"After a cutover by `side`, {layout.table.name!r} is a view. SELECT, INSERT, UPDATE "
            "and DELETE continue to work; INSERT ... ON CONFLICT, TRUNCATE, MERGE and new foreign "
            "keys to it do not. If the application needs one of them, choose the strategy `swap`, "
            "which copies the whole table.",
        ),
        StoreNote(
            "column-not-offered",
            "New vectors are not written into the table itself: next to an HNSW index, an UPDATE "
            "was measured at 136 rows/s, and a COPY into another table at 32,600.",
        ),
    ]
    found = {each: obstacles(connection, layout, each) for each in ("side", "swap")}
    notes += dict.fromkeys(note for each in found.values() for note in each)
    return notes, tuple(each for each in found if not found[each])


def require_no_obstacles(connection: StoreConnection, layout: PgLayout, strategy: str) -> None:
    """Raises StoreUnsupported for the first obstacle to a reindexing by this strategy."""
    for each in obstacles(connection, layout, strategy):
        raise StoreUnsupported(each.detail, field="collection")


#: most dimensions that hnsw and ivfflat index
INDEXED_DIM = {"vector": 2000, "halfvec": 4000}

_RIGHTS = """
SELECT pg_get_userbyid(c.relowner), pg_has_role(c.relowner, 'USAGE'),
  has_schema_privilege(n.oid, 'CREATE'), has_database_privilege(current_database(), 'TEMPORARY'),
  pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean,
  r.rolsuper OR r.rolbypassrls, quote_ident(current_user), quote_ident(n.nspname)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_roles r ON r.rolname = current_user WHERE c.oid = %s"""


def require_same(layout: PgLayout, tag: str, strategy: str, dim: int) -> PgState:
    """Return the state. Raises StoreChanged if the table differs from what `prepare` found."""
    state = layout.state
    assert state is not None
    if state.tag != tag:
        raise StoreRefused(
            f"Another reindexing, {state.tag}, is in progress on the table. Finish or abandon "
            "it first."
        )
    if state.strategy != strategy or state.dim != dim:
        raise StoreChanged(
            f"The reindexing was prepared by strategy {state.strategy!r} for {state.dim} "
            f"dimensions, not {strategy!r} for {dim}. Abandon it first."
        )
    found = form_of(layout, strategy)
    if found != state.form:
        differences = [key for key in found if found[key] != state.form.get(key)]
        raise StoreChanged(
            "The table has changed since the reindexing was prepared: "
            + "; ".join(f"{key} was {state.form.get(key)}, is {found[key]}" for key in differences)
            + ". Undo the change, or abandon the reindexing if it is not cut over."
        )
    return state


def first_state(
    connection: StoreConnection,
    layout: PgLayout,
    location: StoreLocation,
    tag: str,
    strategy: str,
    dim: int,
) -> PgState:
    """Return the state of a reindexing that begins. Raises StoreUnsupported."""
    old = layout.old
    type_name = str(location.options.get("type", old.type_name))
    indexes = [
        [each.method, each.schema, each.operators, list(each.options)]
        for each in vector_indexes(connection, old.relation, old.column)
        if not each.partial
    ]
    if type_name not in INDEXED_DIM:
        raise StoreUnsupported("The option `type` is `vector` or `halfvec`.", field="options")
    if indexes and dim > INDEXED_DIM[type_name]:
        raise StoreUnsupported(
            f"pgvector indexes at most {INDEXED_DIM[type_name]} dimensions of {type_name}; the "
            f"new vectors have {dim}. Set the store's option `type` to `halfvec`, which "
            "can have 4000.",
            field="options",
        )
    details = {
        "rows": layout.rows.name,
        "old": old.relation.name,
        "key": old.key,
        "column": old.column,
        "metric": metric_of(connection, layout),
        "indexes": indexes,
        "not_null": old.relation.column(old.column).not_null,
    }
    return PgState(
        tag,
        strategy,
        "prepared",
        layout.table.name,
        dim,
        type_name,
        form_of(layout, strategy),
        details,
    )


def require_rights(connection: StoreConnection, layout: PgLayout) -> None:
    """Raises StoreRefused with the rights that the role lacks."""
    row = connection.execute(_RIGHTS, [layout.rows.oid]).fetchone()
    assert row is not None
    owner, owns, creates, temporary, read_only, bypasses, role, schema = row
    missing = []
    if read_only:
        missing.append("a server that accepts writes: this one is a read-only replica")
    if not owns:
        missing.append(f"membership in the owner of the table (GRANT {owner} TO {role})")
    if not creates:
        missing.append(f"CREATE in the schema (GRANT CREATE ON SCHEMA {schema} TO {role})")
    if not temporary:
        missing.append(f"temporary tables (GRANT TEMPORARY ON DATABASE ... TO {role})")
    if layout.rows.force_row_security and not bypasses:
        missing.append(f"all rows despite FORCE ROW LEVEL SECURITY (ALTER ROLE {role} BYPASSRLS)")
    if missing:
        raise StoreRefused(f"The role {role} lacks what a reindexing needs: {'; '.join(missing)}.")


def form_of(layout: PgLayout, strategy: str) -> dict[str, Any]:
    """Return what must stay the same: the key, and the type of the old vectors."""
    old = layout.old.relation.column(layout.old.column)
    return {
        "table": (layout.old.relation if strategy == "swap" else layout.rows).oid,
        "key": [layout.key.name, layout.key.type_text],
        "vectors": [old.name, old.type_text],
    }


def require_phase(state: PgState, cut_over: bool, action: str) -> None:
    """Raises WrongState unless clients see the new vectors, or the old ones, as expected."""
    if state.is_cut_over != cut_over:
        raise WrongState(
            f"The reindexing cannot {action}: it is {state.phase}. "
            + ("Cut over first." if cut_over else "Roll back first.")
        )
