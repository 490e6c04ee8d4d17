"""What the catalogue of PostgreSQL says of a schema with a table `docs`."""

from __future__ import annotations

from typing import Any

#: without the vectors' type, which a migration changes, and the numbers of sequences
CATALOGUE = """
SELECT 'relation', c.relname || ' ' || c.relkind::text || coalesce(c.relacl::text, '') ||
  c.relrowsecurity || c.relforcerowsecurity || c.relpersistence::text ||
  pg_get_userbyid(c.relowner) || coalesce(c.reloptions::text, '') || c.relreplident::text ||
  coalesce(obj_description(c.oid, 'pg_class'), '')
  FROM pg_class c WHERE c.relnamespace = %(s)s::text::regnamespace
  AND c.relkind IN ('r', 'v', 'S', 'i')
UNION ALL SELECT 'constraint', conrelid::regclass || ' ' || convalidated ||
  CASE WHEN contype = 'n' AND NOT %(names)s THEN '' ELSE conname END || contype::text ||
  pg_get_constraintdef(oid) FROM pg_constraint
  WHERE connamespace = %(s)s::text::regnamespace AND conname <> 'vectors_id_fkey'
UNION ALL SELECT 'index', pg_get_indexdef(i.indexrelid) || i.indisvalid FROM pg_index i
  JOIN pg_class c ON c.oid = i.indexrelid WHERE c.relnamespace = %(s)s::text::regnamespace
UNION ALL SELECT 'trigger', pg_get_triggerdef(t.oid) || t.tgenabled::text ||
  coalesce(obj_description(t.oid, 'pg_trigger'), '') FROM pg_trigger t
  JOIN pg_class c ON c.oid = t.tgrelid
  WHERE c.relnamespace = %(s)s::text::regnamespace AND NOT t.tgisinternal
UNION ALL SELECT 'policy', (to_jsonb(p) - 'schemaname')::text FROM pg_policies p
  WHERE schemaname = %(s)s
UNION ALL SELECT 'policy', polname || obj_description(oid, 'pg_policy') FROM pg_policy
  WHERE polrelid = (%(s)s || '.docs')::regclass AND obj_description(oid, 'pg_policy') IS NOT NULL
UNION ALL SELECT 'view', viewname || definition FROM pg_views WHERE schemaname = %(s)s
UNION ALL SELECT 'publication', pubname || tablename FROM pg_publication_tables
  WHERE schemaname = %(s)s
UNION ALL SELECT 'function', proname || prosrc FROM pg_proc
  WHERE pronamespace = %(s)s::text::regnamespace
UNION ALL SELECT 'sequence', sequencename || ' ' || start_value || ' ' || increment_by || cycle
  FROM pg_sequences WHERE schemaname = %(s)s
UNION ALL SELECT 'column', a.attname || ' ' || rank() OVER (ORDER BY a.attnum) ||
  CASE a.attname WHEN 'embedding' THEN '' ELSE format_type(a.atttypid, a.atttypmod) END ||
  a.attnotnull || a.attstorage::text || a.attidentity::text || a.attgenerated::text ||
  coalesce(a.attstattarget, -1) || coalesce(col_description(a.attrelid, a.attnum), '') ||
  coalesce(pg_get_expr(d.adbin, d.adrelid), '') || coalesce(a.attacl::text, '') ||
  coalesce(pg_get_serial_sequence(%(s)s || '.docs', a.attname), '')
  FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
  WHERE a.attrelid = (%(s)s || '.docs')::regclass AND a.attnum > 0 AND NOT a.attisdropped
"""


def catalogue(connection: Any, schema: str, *, names: bool = False) -> set[tuple[str, str]]:
    """Return what belongs to clients, without the name of the schema.

    names  whether names of NOT NULL belong to it, which a restore makes up again
    """
    rows = connection.execute(CATALOGUE, {"s": schema, "names": names}).fetchall()
    renamed = (
        (kind, each.replace(f"{schema}.", "").replace(f"{schema}_", "")) for kind, each in rows
    )
    return {each for each in renamed if "anchorage_" not in each[1]}


def leftovers(connection: Any, schema: str | None = None) -> list[str]:
    """Return names and comments of ours in a schema, or in the whole database."""
    rows = connection.execute(
        "SELECT name FROM (SELECT relnamespace, relname FROM pg_class "
        "UNION ALL SELECT pronamespace, proname FROM pg_proc "
        "UNION ALL SELECT relnamespace, tgname FROM pg_trigger t JOIN pg_class c "
        "ON c.oid = t.tgrelid "
        "UNION ALL SELECT connamespace, conname FROM pg_constraint "
        "UNION ALL SELECT typnamespace, typname FROM pg_type "
        "UNION ALL SELECT relnamespace, description FROM pg_description d "
        "LEFT JOIN pg_class c ON c.oid = d.objoid "
        "AND d.classoid = 'pg_class'::regclass) AS all_names (namespace, name) "
        "WHERE name ~ 'anchorage' "
        "AND (%(s)s::text IS NULL OR namespace = to_regnamespace(%(s)s::text))",
        {"s": schema},
    ).fetchall()
    return [row[0] for row in rows]
