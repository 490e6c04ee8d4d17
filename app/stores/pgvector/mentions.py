"""What mentions a table without depending on it: a migration leaves it as it is, and says so."""

from __future__ import annotations

import re
from typing import LiteralString

from app.stores.pgvector.tables import PgTable
from app.stores.port import OLD_SIZE, StoreNote

#: views and policies by what they show, functions and triggers by their text: the catalogue knows
#: no dependency. A trigger has the text of the functions that its own names, too
_MENTIONS: LiteralString = r"""
WITH RECURSIVE t AS (SELECT c.oid, '(^|\W)' || regexp_replace(relname, '\W', '\\\&', 'g')
    || '(\W|$)' AS word FROM pg_class c WHERE c.oid = %(oid)s),
p AS (SELECT p.oid, '(^|\W)' || regexp_replace(proname, '\W', '\\\&', 'g') || '(\W|$)' AS word,
    p.prosrc FROM pg_proc p
  JOIN pg_language l ON l.oid = p.prolang AND l.lanname IN ('sql', 'plpgsql')
  WHERE NOT p.proname ~ '^anchorage_' AND p.pronamespace <> 'pg_catalog'::regnamespace),
runs AS (SELECT 'trigger ' || quote_ident(g.tgname) || ', which runs ' || p.oid::regprocedure
    AS name, p.* FROM p JOIN pg_trigger g ON g.tgfoid = p.oid AND g.tgrelid = %(oid)s
    WHERE NOT g.tgisinternal AND g.tgenabled <> 'D'
  UNION SELECT r.name, p.* FROM runs r JOIN p ON r.prosrc ~ p.word)
SELECT name, CASE WHEN bool_or(prosrc ~ %(size)s) THEN 'old-size-trigger' ELSE 'mentions-table' END
FROM runs GROUP BY name
HAVING bool_or(prosrc ~ %(size)s OR prosrc ~* %(column)s)
UNION ALL SELECT 'function ' || p.oid::regprocedure,
  CASE WHEN prosrc ~ %(size)s THEN 'mentions-vectors' ELSE 'mentions-table' END
FROM t, p WHERE p.prosrc ~* t.word AND p.oid NOT IN (SELECT oid FROM runs)
UNION ALL SELECT 'policy ' || quote_ident(polname), 'mentions-vectors' FROM pg_policy
WHERE polrelid = %(oid)s
  AND concat(pg_get_expr(polqual, polrelid), pg_get_expr(polwithcheck, polrelid)) ~ %(size)s
UNION ALL SELECT DISTINCT 'view ' || w.ev_class::regclass, 'mentions-vectors'
FROM pg_rewrite w JOIN pg_depend d ON d.objid = w.oid AND d.classid = 'pg_rewrite'::regclass
WHERE d.refobjid = %(oid)s AND w.ev_class <> %(oid)s AND pg_get_viewdef(w.ev_class) ~ %(size)s
LIMIT 20"""

#: what happens to each, by the code of its note
_FATES = {
    "mentions-table": "The {} names the table or its vectors, and stays as it is. Check that it "
    "fits the new vectors.",
    "mentions-vectors": "The {} names vectors of {} dimensions. It stays as it is, and fails after "
    "a cutover to another size: change it then.",
    OLD_SIZE: "The {} names vectors of {} dimensions. After a cutover to another size, the writes "
    "that fire it fail.",
}


def find_mentions(table: PgTable) -> list[StoreNote]:
    """Return what may expect vectors of the old size after a cutover."""
    dim = table.read_dim()
    size = rf"\m(vector|halfvec)\({dim}\)"
    values = {
        "oid": table.oid,
        "column": rf"(^|\W){re.escape(table.vectors.name)}(\W|$)",
        "size": size,
    }
    return [
        StoreNote(code, _FATES[code].format(what, dim))
        for what, code in table.connection.execute(_MENTIONS, values).fetchall()
    ]
