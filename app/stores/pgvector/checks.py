"""What a migration requires of a table, and of the step before it."""

from __future__ import annotations

from typing import LiteralString

from app.errors import StoreChanged, StoreRefused, StoreUnsupported
from app.stores.pgvector.indexes import EXPRESSION, search_index
from app.stores.pgvector.second_table import TRIGGERS
from app.stores.pgvector.tables import PgLayout
from app.stores.port import StoreLocation, StoreNote

#: code and text of each obstacle; parameters: oid of the table, and its column of vectors.
#: migration.py names what a migration moves; all else that depends on the table is an obstacle
_OBSTACLES: LiteralString = """
WITH t AS (SELECT c.*, a.attnum, a.atttypid, y.typarray,
    (SELECT string_agg(quote_ident(p.pubname), ', ') FROM pg_publication_tables p
      JOIN pg_namespace n ON n.nspname = p.schemaname
      WHERE p.tablename = c.relname AND n.oid = c.relnamespace) AS publications FROM pg_class c
  JOIN pg_type y ON y.oid = c.reltype
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = %(column)s WHERE c.oid = %(oid)s)
SELECT code, detail FROM t, LATERAL (VALUES
  ('partitioned', relkind = 'p' OR relispartition
    OR EXISTS (SELECT FROM pg_inherits WHERE t.oid IN (inhrelid, inhparent)),
    'The table is partitioned or inherits: its parts cannot have vectors of different sizes. '
    'It can be searched. To migrate it, copy its rows into one table.'),
  ('column-grants', EXISTS (SELECT FROM pg_attribute WHERE attrelid = t.oid AND attacl IS NOT NULL),
    'Rights on single columns of the table are not copied. Grant them on the table, or revoke '
    'them.'),
  ('replication', relreplident <> 'd'
    OR EXISTS (SELECT FROM pg_subscription_rel WHERE srrelid = t.oid) OR publications IS NOT NULL,
    'A publication' || coalesce(' (' || publications || ')', '') || ' or a subscription of logical '
    'replication has the table, or its replica identity is not the default. Take the table out of '
    'it, and set REPLICA IDENTITY DEFAULT.'),
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
      AND (a.attstattarget >= 0 OR a.attoptions::text !~ '^{pg_attver=[0-9]+}$'))
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
  'has a period (WITHOUT OVERLAPS, PERIOD), is not validated or not enforced, or belongs to a '
  'partitioned table or to another owner. Validate it, or drop it for the migration.'
  FROM t JOIN pg_constraint k ON t.oid IN (k.conrelid, k.confrelid)
  JOIN pg_class r ON r.oid = k.conrelid
  WHERE k.contype = 'x' OR NOT k.convalidated OR to_jsonb(k) ->> 'conperiod' = 'true'
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
        WHERE i.indexrelid = c.oid AND i.indexprs IS NOT NULL AND (i.indnkeyatts > 1
          OR pg_get_indexdef(c.oid, 1, true) !~ %(expression)s)))))
    WHEN 'pg_rewrite'::regclass THEN r.rulename = '_RETURN' AND v.relkind = 'v'
      AND v.relpersistence <> 't' AND pg_has_role(v.relowner, 'USAGE')
      AND NOT (d.refobjsubid = t.attnum AND EXISTS (SELECT FROM pg_attribute a
        WHERE a.attrelid = v.oid AND a.atttypid = t.atttypid))
    ELSE false END"""

#: what `create_second` copies. A restored dump may choose other names of NOT NULL
_DEFINITIONS: LiteralString = """
SELECT 'column ' || quote_ident(a.attname), concat_ws(', ', 'number ' || row_number() OVER (
    ORDER BY a.attnum), CASE WHEN a.attname <> %(column)s THEN
    format_type(a.atttypid, a.atttypmod) END, CASE WHEN a.attnotnull THEN 'NOT NULL' END,
  'DEFAULT ' || pg_get_expr(d.adbin, d.adrelid), 'generated ' || nullif(a.attgenerated::text, ''),
  (SELECT 'COLLATE ' || quote_ident(c.collname) FROM pg_collation c WHERE c.oid = a.attcollation
    AND c.collname <> 'default'),
  'storage ' || a.attstorage::text, 'compression ' || nullif(a.attcompression::text, ''))
FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped
UNION ALL SELECT 'constraint ' || CASE WHEN contype = 'n' AND conname ~ '_not_null[0-9]*$'
  THEN pg_get_constraintdef(oid) ELSE quote_ident(conname) END, pg_get_constraintdef(oid)
FROM pg_constraint WHERE conrelid = %(oid)s AND contype IN ('c', 'n')
UNION ALL SELECT 'storage', array_to_string(reloptions, ' ') FROM pg_class WHERE oid = %(oid)s"""

#: most dimensions that hnsw and ivfflat index
INDEXED_DIM = {"vector": 2000, "halfvec": 4000, "bit": 64000}


def find_obstacles(layout: PgLayout) -> list[StoreNote]:
    """Return what forbids a migration of this table."""
    values = {"oid": layout.seen.oid, "column": layout.seen.vectors.name}
    values["expression"] = f"^{EXPRESSION.pattern}$"
    rows = layout.connection.execute(_OBSTACLES, values).fetchall()
    return list(dict.fromkeys(StoreNote(*row) for row in rows))


def require_no_obstacles(layout: PgLayout) -> None:
    """Raises StoreUnsupported for the first obstacle to a migration."""
    for each in find_obstacles(layout):
        raise StoreUnsupported(each.detail, field="collection")


def new_type(layout: PgLayout, location: StoreLocation, dim: int) -> str:
    """Return the type of the new vectors. Raises StoreUnsupported if it cannot have the index."""
    type_name = str(location.options.get("type", layout.seen.vectors.type_name))
    if type_name not in ("vector", "halfvec"):
        raise StoreUnsupported("The option `type` is `vector` or `halfvec`.", field="options")
    index = search_index(layout.seen)
    if index is None:
        return type_name
    held = type_name if index.expression is None else index.type_text.partition("(")[0]
    if dim > INDEXED_DIM[held]:
        advice = "Set the store's option `type` to `halfvec`, which can have 4000."
        if dim > INDEXED_DIM["halfvec"]:
            advice = "Name a target of at most 4000, or index `binary_quantize` of the column."
        raise StoreUnsupported(
            f"pgvector indexes at most {INDEXED_DIM[held]} dimensions of {held}; the new vectors "
            f"have {dim}. {advice}",
            field="options",
        )
    return type_name


def another_migration(tag: str) -> StoreRefused:
    """Return the error of a table, or of other rows of it, that another migration has."""
    return StoreRefused(
        f"Another migration, {tag}, is in progress on the table. Finish or abandon it first, in "
        "the service that began it. If none knows it, the script on the page about pgvector "
        "removes it."
    )


def require_same(layout: PgLayout, tag: str, dim: int) -> None:
    """Raises StoreChanged if the table differs from what `prepare` found."""
    if layout.state.tag != tag:
        raise another_migration(layout.state.tag)
    prepared = layout.table("new").dim
    if prepared not in (dim, None):
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


def require_capture(layout: PgLayout) -> None:
    """Raises StoreChanged if a trigger is missing or disabled: writes of clients would be lost."""
    rows = layout.connection.execute(
        "SELECT tgname FROM pg_trigger WHERE tgrelid = %s AND tgenabled = 'A'", [layout.seen.oid]
    ).fetchall()
    missing = ", ".join(each for each in TRIGGERS if (each,) not in rows)
    if not missing:
        return
    advice = "Writes of clients may be lost. `abandon` the migration, and plan a new one."
    if layout.state.is_cut_over:
        advice = (
            "Writes of clients may be lost for a rollback. `finish` the migration. Or, if you "
            "only disabled triggers, enable them by ALTER TABLE ... ENABLE ALWAYS TRIGGER, and "
            "call `verify`: it copies again what differs in more than the vector."
        )
    raise StoreChanged(
        f"Triggers of the migration on {layout.seen.name!r} are missing or disabled: {missing}. "
        f"{advice}"
    )


def require_same_tables(layout: PgLayout) -> None:
    """Raises StoreChanged and StoreUnsupported for what a switch would undo or not move."""
    if layout.seen.selected is not None:  # the switch changes vectors, not tables
        return
    seen, other = (
        dict(
            layout.connection.execute(
                _DEFINITIONS, {"oid": each.oid, "column": each.vectors.name}
            ).fetchall()
        )
        for each in (layout.seen, layout.other)
    )
    different = [
        f"{name} is ({seen.get(name, 'absent')}), and ({other.get(name, 'absent')}) in "
        f"{layout.other.name}"
        for name in sorted(seen.keys() | other.keys())
        if seen.get(name) != other.get(name)
    ]
    if different:
        raise StoreChanged(
            f"The table {layout.seen.name!r} was altered during the migration: "
            f"{'; '.join(different)}. Undo the change, or alter {layout.other.name} in the same "
            "way, and try again."
        )
    require_no_obstacles(layout)
