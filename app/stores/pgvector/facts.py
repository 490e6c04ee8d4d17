"""A table as it is now, and what a migration requires of it."""

from __future__ import annotations

from typing import LiteralString

from app.errors import StoreChanged, StoreRefused, StoreUnsupported
from app.stores.pgvector.connections import StoreConnection
from app.stores.pgvector.layout import PgLayout, PgState, index_metric
from app.stores.pgvector.reading import dim_of
from app.stores.port import StoreFacts, StoreLocation, StoreNote

#: code and text of each obstacle; parameters: oid and column
_OBSTACLES: LiteralString = """
WITH readers AS (SELECT DISTINCT r.ev_class AS oid, d.refobjsubid AS attnum FROM pg_depend d
  JOIN pg_rewrite r ON r.oid = d.objid AND r.ev_class <> d.refobjid
  WHERE d.refobjid = %(oid)s AND d.refclassid = 'pg_class'::regclass
  AND d.classid = 'pg_rewrite'::regclass),
types AS (SELECT unnest(ARRAY[c.oid, y.oid, y.typarray]) AS oid
  FROM pg_class c JOIN pg_type y ON y.oid = c.reltype WHERE c.oid = %(oid)s),
t AS (SELECT c.*, a.attnum, a.atttypid FROM pg_class c
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = %(column)s WHERE c.oid = %(oid)s)
SELECT 'partitioned', 'The table is partitioned or inherits. Migrate each partition as a store.'
  FROM t WHERE relkind = 'p' OR relispartition
  OR EXISTS (SELECT FROM pg_inherits WHERE t.oid IN (inhrelid, inhparent))
UNION ALL SELECT 'functions', 'The function ' || d.objid::regprocedure ||
  ' depends on the type of the table. Drop it, and create it again after the migration.'
  FROM types JOIN pg_depend d ON d.refobjid = types.oid WHERE d.classid = 'pg_proc'::regclass
UNION ALL SELECT 'row-type', 'The table ' || d.objid::regclass || ' has a column of the row type. '
  'Drop the column.' FROM types JOIN pg_depend d ON d.refobjid = types.oid
  AND d.refclassid = 'pg_type'::regclass AND d.classid = 'pg_class'::regclass
  WHERE d.objsubid > 0
UNION ALL SELECT 'materialized-views', 'The materialized view ' || v.oid::regclass ||
  ' reads the table. Drop it, and create it again after the migration.'
  FROM pg_class v WHERE v.relkind = 'm' AND v.oid IN (SELECT oid FROM readers)
UNION ALL SELECT 'view-of-vectors', 'The view ' || v.oid::regclass || ' shows the vectors, whose '
  'type changes. Drop it, and create it again after the migration, or leave the vectors out of it.'
  FROM t JOIN readers r ON r.attnum = t.attnum JOIN pg_class v ON v.oid = r.oid AND v.relkind = 'v'
  WHERE EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = v.oid AND a.atttypid = t.atttypid)
UNION ALL SELECT 'view-owner', 'The view ' || v.oid::regclass || ' belongs to another owner, or '
  'is temporary. Drop it for the migration, or make the role of the service a member of its owner.'
  FROM pg_class v WHERE v.relkind = 'v' AND v.oid IN (SELECT oid FROM readers)
  AND (NOT pg_has_role(v.relowner, 'USAGE') OR v.relpersistence = 't')
UNION ALL SELECT 'column-grants', 'Rights on single columns of the table are not copied. '
  'Grant them on the table, or revoke them.'
  FROM t WHERE EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = t.oid AND a.attacl IS NOT NULL)
UNION ALL SELECT 'generated-columns', 'The column ' || quote_ident(a.attname) ||
  ' is computed from the vectors. Drop it for the migration.'
  FROM t JOIN pg_depend d ON d.refobjid = t.oid AND d.refobjsubid = t.attnum
  AND d.classid = 'pg_attrdef'::regclass JOIN pg_attrdef f ON f.oid = d.objid
  JOIN pg_attribute a ON a.attrelid = f.adrelid AND a.attnum = f.adnum AND a.attgenerated <> ''
UNION ALL SELECT 'rules', 'The rule ' || quote_ident(r.rulename) || ' on ' || r.ev_class::regclass
  || ' rewrites statements on the table, or uses it. Drop it for the migration.'
  FROM t JOIN pg_depend d ON d.refobjid = t.oid AND d.classid = 'pg_rewrite'::regclass
  JOIN pg_rewrite r ON r.oid = d.objid AND r.rulename <> '_RETURN'
UNION ALL SELECT 'expression-index', 'The index ' || i.indexrelid::regclass || ' computes from the '
  'vectors. Drop it for the migration.' FROM t JOIN pg_index i ON i.indrelid = t.oid
  WHERE i.indexprs IS NOT NULL AND EXISTS (SELECT FROM pg_depend d WHERE d.objid = i.indexrelid
    AND d.refobjid = t.oid AND d.refobjsubid = t.attnum)
UNION ALL SELECT 'constraint', 'The constraint ' || quote_ident(n.conname) || ' checks the '
  'vectors, is not validated, or is an exclusion. Validate it, or drop it for the migration.'
  FROM t JOIN pg_constraint n ON n.conrelid = t.oid WHERE n.contype = 'x' OR n.contype = 'c'
    AND t.attnum = ANY(n.conkey) OR n.contype IN ('c', 'n', 'f') AND NOT n.convalidated
UNION ALL SELECT 'default', 'The column of vectors has a default. Drop the default for the '
  'migration.' FROM t JOIN pg_attrdef f ON f.adrelid = t.oid AND f.adnum = t.attnum
UNION ALL SELECT 'publication', 'A publication sends the table, or its replica identity is '
  'not the default. Drop the publication or take the table out of it, and set REPLICA IDENTITY '
  'DEFAULT.' FROM t WHERE relreplident <> 'd' OR EXISTS (SELECT FROM pg_publication_tables p
    JOIN pg_namespace n ON n.nspname = p.schemaname
    WHERE p.tablename = t.relname AND n.oid = t.relnamespace)
UNION ALL SELECT 'subscription', 'A subscription of logical replication writes the table, and '
  'would leave out the table that replaces it. Drop the subscription, or take the table out of its '
  'publication and refresh the subscription.'
  FROM t WHERE EXISTS (SELECT FROM pg_subscription_rel s WHERE s.srrelid = t.oid)
UNION ALL SELECT 'statistics', 'The table has extended statistics. Drop them, and create them '
  'again after the migration.'
  FROM t WHERE EXISTS (SELECT FROM pg_statistic_ext s WHERE s.stxrelid = t.oid)
UNION ALL SELECT 'storage', 'Options of the TOAST table, the mark of CLUSTER, tablespaces, '
  'UNLOGGED and security labels are not copied. Reset them (ALTER TABLE ... RESET (toast...), SET '
  'WITHOUT CLUSTER, SET LOGGED, SET TABLESPACE pg_default; ALTER INDEX ... SET TABLESPACE '
  'pg_default), and set them again after the migration.' FROM t
  WHERE relpersistence <> 'p' OR reltablespace <> 0
  OR EXISTS (SELECT FROM pg_class o WHERE o.oid = t.reltoastrelid AND o.reloptions IS NOT NULL)
  OR EXISTS (SELECT FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
    WHERE i.indrelid = t.oid AND (i.indisclustered OR x.reltablespace <> 0))
  OR EXISTS (SELECT FROM pg_seclabel s
    WHERE s.objoid = t.oid AND s.classoid = 'pg_class'::regclass)
UNION ALL SELECT 'policy', 'The policy ' || quote_ident(p.polname) || ' of another table '
  'reads the table. Drop it for the migration.' FROM t JOIN pg_depend d ON d.refobjid = t.oid
  AND d.classid = 'pg_policy'::regclass JOIN pg_policy p ON p.oid = d.objid
  WHERE p.polrelid <> t.oid GROUP BY p.oid, p.polname
UNION ALL SELECT 'foreign-key', 'The foreign key ' || quote_ident(n.conname) || ' belongs to '
  'a partitioned table or to another owner, or is not validated. Drop it for the migration.'
  FROM t JOIN pg_constraint n ON n.confrelid = t.oid AND n.contype = 'f'
  JOIN pg_class r ON r.oid = n.conrelid
  WHERE r.relkind = 'p' OR NOT pg_has_role(r.relowner, 'USAGE') OR NOT n.convalidated"""


def obstacles(connection: StoreConnection, layout: PgLayout) -> list[StoreNote]:
    """Return what forbids a migration of this table."""
    values = {"oid": layout.table.oid, "column": layout.seen.column}
    rows = connection.execute(_OBSTACLES, values).fetchall()
    return list(dict.fromkeys(StoreNote(*row) for row in rows))


DTYPES = {"vector": "float32", "halfvec": "float16"}


def collection_facts(connection: StoreConnection, layout: PgLayout) -> StoreFacts:
    """Return the collection as clients see it."""
    seen = layout.seen
    [(rows, size)] = connection.run(
        "SELECT count({}), (SELECT pg_total_relation_size(%s::oid)) FROM {}",
        seen.column,
        seen.relation.identifier,
        params=[seen.relation.oid],
    ).fetchall()
    metric = index_metric(connection, seen)
    notes = obstacles(connection, layout)
    return StoreFacts(
        rows=int(rows),
        dim=dim_of(connection, seen),
        metric=metric or "cosine",
        dtype=DTYPES[seen.type_name],
        indexed=metric is not None,
        can_migrate=not notes,
        vector_bytes=int(size),
        vector_field=seen.column,
        notes=tuple(notes),
    )


def require_no_obstacles(connection: StoreConnection, layout: PgLayout) -> None:
    """Raises StoreUnsupported for the first obstacle to a migration."""
    for each in obstacles(connection, layout):
        raise StoreUnsupported(each.detail, field="collection")


#: most dimensions that hnsw and ivfflat index
INDEXED_DIM = {"vector": 2000, "halfvec": 4000}

_RIGHTS = """
SELECT pg_get_userbyid(c.relowner), pg_has_role(c.relowner, 'USAGE'),
  has_schema_privilege(n.oid, 'CREATE'), has_database_privilege(current_database(), 'TEMPORARY'),
  pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean,
  NOT c.relforcerowsecurity OR r.rolsuper OR r.rolbypassrls, quote_ident(current_user),
  quote_ident(n.nspname)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_roles r ON r.rolname = current_user WHERE c.oid = %s"""


def require_same(layout: PgLayout, tag: str, dim: int) -> PgState:
    """Return the state. Raises StoreChanged if the table differs from what `prepare` found."""
    state = layout.state
    assert state is not None
    if state.tag != tag:
        raise StoreRefused(
            f"Another migration, {state.tag}, is in progress on the table. Finish or abandon "
            "it first. If no service knows it, the script on the page about pgvector removes it."
        )
    if state.dim != dim:
        raise StoreChanged(
            f"The migration was prepared for {state.dim} dimensions, not for {dim}. Abandon it "
            "first."
        )
    found, known = (layout.seen.key, layout.seen.column), (state.key, state.column)
    if found != known:
        raise StoreChanged(
            f"The table has changed since the migration was prepared: key and vectors were "
            f"{known}, and are {found}. Undo the change, or abandon the migration if it is not "
            "cut over."
        )
    return state


def first_state(
    connection: StoreConnection,
    layout: PgLayout,
    location: StoreLocation,
    tag: str,
    dim: int,
) -> PgState:
    """Return the state of a migration that begins."""
    old = layout.seen
    type_name = str(location.options.get("type", old.type_name))
    if type_name not in INDEXED_DIM:
        raise StoreUnsupported("The option `type` is `vector` or `halfvec`.", field="options")
    if index_metric(connection, old) is not None and dim > INDEXED_DIM[type_name]:
        raise StoreUnsupported(
            f"pgvector indexes at most {INDEXED_DIM[type_name]} dimensions of {type_name}; the "
            f"new vectors have {dim}. Set the store's option `type` to `halfvec`, which "
            "can have 4000.",
            field="options",
        )
    return PgState(tag, "prepared", layout.table.name, dim, type_name, old.key, old.column)


def require_rights(connection: StoreConnection, layout: PgLayout) -> None:
    """Raises StoreRefused with the rights that the role lacks."""
    [row] = connection.execute(_RIGHTS, [layout.table.oid]).fetchall()
    owner, owns, creates, temporary, read_only, sees_all, role, schema = row
    missing = []
    if read_only:
        missing.append("a server that accepts writes: this one is a read-only replica")
    if not owns:
        missing.append(f"membership in the owner of the table (GRANT {owner} TO {role})")
    if not creates:
        missing.append(f"CREATE in the schema (GRANT CREATE ON SCHEMA {schema} TO {role})")
    if not temporary:
        missing.append(f"temporary tables (GRANT TEMPORARY ON DATABASE ... TO {role})")
    if not sees_all:
        missing.append(f"all rows despite FORCE ROW LEVEL SECURITY (ALTER ROLE {role} BYPASSRLS)")
    if missing:
        raise StoreRefused(f"The role {role} lacks what a migration needs: {'; '.join(missing)}.")
