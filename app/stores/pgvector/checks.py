"""What a migration requires of a table, of the role, and of the step before it."""

from __future__ import annotations

from typing import LiteralString

from app.errors import StoreChanged, StoreRefused, StoreUnsupported
from app.stores.pgvector.connections import StoreConnection
from app.stores.pgvector.tables import PgLayout, index_metric
from app.stores.port import StoreLocation, StoreNote

#: code and text of each obstacle; parameters: oid of the table, and its column of vectors.
#: second_table.py names what a migration moves; all else that depends on the table is an obstacle
_OBSTACLES: LiteralString = """
WITH t AS (SELECT c.*, a.attnum, a.atttypid, y.typarray FROM pg_class c
  JOIN pg_type y ON y.oid = c.reltype
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = %(column)s WHERE c.oid = %(oid)s)
SELECT code, detail FROM t, LATERAL (VALUES
  ('partitioned', relkind = 'p' OR relispartition
    OR EXISTS (SELECT FROM pg_inherits WHERE t.oid IN (inhrelid, inhparent)),
    'The table is partitioned or inherits. Migrate each partition as a store.'),
  ('column-grants', EXISTS (SELECT FROM pg_attribute WHERE attrelid = t.oid AND attacl IS NOT NULL),
    'Rights on single columns of the table are not copied. Grant them on the table, or revoke '
    'them.'),
  ('replication', relreplident <> 'd'
    OR EXISTS (SELECT FROM pg_subscription_rel WHERE srrelid = t.oid)
    OR EXISTS (SELECT FROM pg_publication_tables p JOIN pg_namespace n ON n.nspname = p.schemaname
      WHERE p.tablename = t.relname AND n.oid = t.relnamespace),
    'A publication or a subscription of logical replication has the table, or its replica '
    'identity is not the default. Take the table out of it, and set REPLICA IDENTITY DEFAULT.'),
  ('storage', relpersistence <> 'p' OR reltablespace <> 0
    OR EXISTS (SELECT FROM pg_class o WHERE o.oid = t.reltoastrelid AND o.reloptions IS NOT NULL)
    OR EXISTS (SELECT FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
      WHERE i.indrelid = t.oid AND (i.indisclustered OR x.reltablespace <> 0))
    OR EXISTS (SELECT FROM pg_seclabel WHERE objoid = t.oid AND classoid = 'pg_class'::regclass),
    'Options of the TOAST table, the mark of CLUSTER, tablespaces, UNLOGGED and security labels '
    'are not copied. Reset them (ALTER TABLE ... RESET (toast...), SET WITHOUT CLUSTER, SET '
    'LOGGED, SET TABLESPACE pg_default; ALTER INDEX ... SET TABLESPACE pg_default), and set them '
    'again after the migration.'),
  ('details', EXISTS (SELECT FROM pg_attribute a WHERE (a.attrelid = t.oid
      OR a.attrelid IN (SELECT indexrelid FROM pg_index WHERE indrelid = t.oid))
      AND a.attnum > 0 AND NOT a.attisdropped
      AND (coalesce(a.attstattarget, -1) >= 0 OR a.attoptions IS NOT NULL))
    OR EXISTS (SELECT FROM pg_description d WHERE (d.classoid, d.objoid) IN (
      SELECT 'pg_class'::regclass::oid, indexrelid FROM pg_index WHERE indrelid = t.oid
      UNION ALL SELECT 'pg_trigger'::regclass, oid FROM pg_trigger WHERE tgrelid = t.oid
      UNION ALL SELECT 'pg_policy'::regclass, oid FROM pg_policy WHERE polrelid = t.oid
      UNION ALL SELECT 'pg_constraint'::regclass, oid FROM pg_constraint
        WHERE t.oid IN (conrelid, confrelid))),
    'Comments on indexes, constraints, triggers and policies, and statistics targets and options '
    'of columns are not copied. Remove them (COMMENT ON ... IS NULL, ALTER TABLE ... ALTER ... '
    'SET STATISTICS -1, RESET (n_distinct)), and set them again after the migration.'))
  found(code, is_so, detail) WHERE is_so
UNION ALL SELECT 'constraint', 'The constraint ' || quote_ident(k.conname) || ' is an exclusion, '
  'is not validated, or belongs to a partitioned table or to another owner. Validate it, or drop '
  'it for the migration.'
  FROM t JOIN pg_constraint k ON t.oid IN (k.conrelid, k.confrelid)
  JOIN pg_class r ON r.oid = k.conrelid
  WHERE k.contype = 'x' OR NOT k.convalidated
    OR k.contype = 'f' AND (r.relkind = 'p' OR NOT pg_has_role(r.relowner, 'USAGE'))
UNION ALL SELECT DISTINCT 'dependent', CASE WHEN v.oid IS NULL OR r.rulename <> '_RETURN'
    THEN 'The ' || pg_describe_object(d.classid, d.objid, d.objsubid) ELSE 'The view '
    || v.oid::regclass END || ' needs this very table, or the type of its vectors, or is somebody '
  'else''s. Drop it, and create it again after the migration.'
  FROM t JOIN pg_depend d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = t.oid
    OR d.refclassid = 'pg_type'::regclass AND d.refobjid IN (t.reltype, t.typarray)
  LEFT JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid
  LEFT JOIN pg_class v ON v.oid = r.ev_class
  WHERE NOT CASE d.classid
    WHEN 'pg_type'::regclass THEN true
    WHEN 'pg_trigger'::regclass THEN true
    WHEN 'pg_attrdef'::regclass THEN d.refobjsubid <> t.attnum
    WHEN 'pg_policy'::regclass THEN
      EXISTS (SELECT FROM pg_policy p WHERE p.oid = d.objid AND p.polrelid = t.oid)
    WHEN 'pg_constraint'::regclass THEN d.refobjsubid <> t.attnum
      OR NOT EXISTS (SELECT FROM pg_constraint k WHERE k.oid = d.objid AND k.contype = 'c')
    WHEN 'pg_class'::regclass THEN d.objsubid = 0 AND EXISTS (SELECT FROM pg_class c
      WHERE c.oid = d.objid AND (c.relkind IN ('t', 'S') OR c.relkind = 'i'
      AND NOT (d.refobjsubid = t.attnum AND EXISTS (SELECT FROM pg_index i
        WHERE i.indexrelid = c.oid AND i.indexprs IS NOT NULL))))
    WHEN 'pg_rewrite'::regclass THEN r.rulename = '_RETURN' AND v.relkind = 'v'
      AND v.relpersistence <> 't' AND pg_has_role(v.relowner, 'USAGE')
      AND NOT (d.refobjsubid = t.attnum AND EXISTS (SELECT FROM pg_attribute a
        WHERE a.attrelid = v.oid AND a.atttypid = t.atttypid))
    ELSE false END"""

#: what the role lacks for a migration
_LACKING: LiteralString = """
SELECT text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_roles r ON r.rolname = current_user, LATERAL (VALUES
  (pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean,
    'a server that accepts writes: this one is a read-only replica'),
  (NOT pg_has_role(c.relowner, 'USAGE'), format('membership in the owner of the table '
    '(GRANT %%I TO %%I)', pg_get_userbyid(c.relowner), current_user)),
  (NOT has_schema_privilege(n.oid, 'CREATE'), format('CREATE in the schema '
    '(GRANT CREATE ON SCHEMA %%I TO %%I)', n.nspname, current_user)),
  (NOT has_database_privilege(current_database(), 'TEMPORARY'), format('temporary tables '
    '(GRANT TEMPORARY ON DATABASE ... TO %%I)', current_user)),
  (c.relforcerowsecurity AND NOT r.rolsuper AND NOT r.rolbypassrls, format('all rows despite '
    'FORCE ROW LEVEL SECURITY (ALTER ROLE %%I BYPASSRLS)', current_user))) o(lacks, text)
WHERE c.oid = %s AND lacks"""

#: most dimensions that hnsw and ivfflat index
INDEXED_DIM = {"vector": 2000, "halfvec": 4000}


def find_obstacles(connection: StoreConnection, layout: PgLayout) -> list[StoreNote]:
    """Return what forbids a migration of this table."""
    values = {"oid": layout.seen.oid, "column": layout.seen.vectors.name}
    rows = connection.execute(_OBSTACLES, values).fetchall()
    return list(dict.fromkeys(StoreNote(*row) for row in rows))


def require_no_obstacles(connection: StoreConnection, layout: PgLayout) -> None:
    """Raises StoreUnsupported for the first obstacle to a migration."""
    for each in find_obstacles(connection, layout):
        raise StoreUnsupported(each.detail, field="collection")


def require_rights(connection: StoreConnection, layout: PgLayout) -> None:
    """Raises StoreRefused with the rights that the role lacks."""
    lacking = [text for [text] in connection.execute(_LACKING, [layout.seen.oid]).fetchall()]
    if lacking:
        raise StoreRefused(f"The role lacks what a migration needs: {'; '.join(lacking)}.")


def new_type(
    connection: StoreConnection, layout: PgLayout, location: StoreLocation, dim: int
) -> str:
    """Return the type of the new vectors. Raises StoreUnsupported if it cannot have the index."""
    type_name = str(location.options.get("type", layout.seen.vectors.type_name))
    if type_name not in INDEXED_DIM:
        raise StoreUnsupported("The option `type` is `vector` or `halfvec`.", field="options")
    if index_metric(connection, layout.seen) is not None and dim > INDEXED_DIM[type_name]:
        raise StoreUnsupported(
            f"pgvector indexes at most {INDEXED_DIM[type_name]} dimensions of {type_name}; the "
            f"new vectors have {dim}. Set the store's option `type` to `halfvec`, which "
            "can have 4000.",
            field="options",
        )
    return type_name


def require_same(layout: PgLayout, tag: str, dim: int) -> None:
    """Raises StoreChanged if the table differs from what `prepare` found."""
    if layout.state.tag != tag:
        raise StoreRefused(
            f"Another migration, {layout.state.tag}, is in progress on the table. Finish or "
            "abandon it first. If no service knows it, the script on the page about pgvector "
            "removes it."
        )
    prepared = layout.table("new").dim
    if prepared != dim:
        raise StoreChanged(
            f"The migration was prepared for {prepared} dimensions, not for {dim}. Abandon it "
            "first."
        )
    found, known = ((e.key.name, e.vectors.name) for e in (layout.seen, layout.other))
    if found != known:
        raise StoreChanged(
            f"The table has changed since the migration was prepared: key and vectors were "
            f"{known}, and are {found}. Undo the change, or abandon the migration if it is not "
            "cut over."
        )
