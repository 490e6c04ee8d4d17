"""What mentions a table without depending on it: a migration leaves it as it is, and says so."""

from __future__ import annotations

from typing import LiteralString

from app.stores.pgvector.tables import PgTable
from app.stores.port import StoreNote

#: views by what they show, functions and triggers by their text: the catalogue knows no dependency
_MENTIONS: LiteralString = r"""
WITH t AS (SELECT c.oid, c.relname FROM pg_class c WHERE c.oid = %(oid)s)
SELECT DISTINCT CASE WHEN g.oid IS NULL THEN 'function ' || p.oid::regprocedure
  ELSE 'trigger ' || quote_ident(g.tgname) || ', which runs ' || p.oid::regprocedure END,
  p.prosrc ~ %(size)s
FROM t, pg_proc p JOIN pg_language l ON l.oid = p.prolang AND l.lanname IN ('sql', 'plpgsql')
LEFT JOIN pg_trigger g ON g.tgfoid = p.oid AND g.tgrelid = %(oid)s AND NOT g.tgisinternal
WHERE (g.oid IS NOT NULL AND (p.prosrc ~ %(size)s OR p.prosrc ~* ('\m' || %(column)s || '\M'))
    OR g.oid IS NULL AND p.prosrc ~* ('\m' || t.relname || '\M'))
  AND NOT p.proname ~ '^anchorage_' AND p.pronamespace <> 'pg_catalog'::regnamespace
UNION ALL SELECT DISTINCT 'view ' || w.ev_class::regclass, true
FROM pg_rewrite w JOIN pg_depend d ON d.objid = w.oid AND d.classid = 'pg_rewrite'::regclass
WHERE d.refobjid = %(oid)s AND w.ev_class <> %(oid)s AND pg_get_viewdef(w.ev_class) ~ %(size)s
LIMIT 20"""


def find_mentions(table: PgTable) -> list[StoreNote]:
    """Return what may expect vectors of the old size after a cutover."""
    dim = table.read_dim()
    size = rf"\m(vector|halfvec)\({dim}\)"
    values = {"oid": table.oid, "column": table.vectors.name, "size": size}
    return [
        StoreNote(
            "mentions-vectors" if has_size else "mentions-table",
            f"The {what} names vectors of {dim} dimensions. It stays as it is, and "
            "fails after a cutover to another size: change it then."
            if has_size
            else f"The {what} names the table or its vectors, and stays as it is. Check that it "
            "fits the new vectors.",
        )
        for what, has_size in table.connection.execute(_MENTIONS, values).fetchall()
    ]
