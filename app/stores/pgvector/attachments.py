"""What belongs to a table besides its rows and indexes, and moves to the table that replaces it.

The catalogue writes the statements. They name the table by its name, which the other table has when
those run that give.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import psycopg
from psycopg import sql

from app.errors import StoreChanged
from app.stores.pgvector.connections import StoreConnection
from app.stores.pgvector.layout import PgLayout, PgRelation

_MOVED = """
WITH t AS (SELECT c.*, format('%%I.%%I', n.nspname, c.relname) AS name FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %(oid)s),
s AS (SELECT c.oid, c.relacl, c.relowner, format('%%I.%%I', n.nspname, c.relname) AS name,
  quote_ident(a.attname) AS field, a.attidentity, q.* FROM pg_depend d
  JOIN pg_class c ON c.oid = d.objid JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_sequence q ON q.seqrelid = c.oid
  JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
  WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
  AND d.refobjid = %(oid)s AND d.deptype IN ('a', 'i'))
SELECT 1, NULL, format('ALTER TABLE %%s OWNER TO %%I; ALTER TABLE %%1$s %%3$s ROW LEVEL SECURITY, '
    '%%4$s ROW LEVEL SECURITY', name, pg_get_userbyid(relowner),
    CASE WHEN relrowsecurity THEN 'ENABLE' ELSE 'DISABLE' END,
    CASE WHEN relforcerowsecurity THEN 'FORCE' ELSE 'NO FORCE' END), NULL FROM t
UNION ALL SELECT 2, NULL, format('ALTER SEQUENCE %%s OWNED BY %%s.%%s', s.name, t.name, field), NULL
  FROM t, s WHERE attidentity = ''
UNION ALL SELECT 2, format('ALTER TABLE %%s ALTER %%s DROP IDENTITY', t.name, field),
  format('ALTER TABLE %%s ALTER %%s ADD GENERATED %%s AS IDENTITY (SEQUENCE NAME %%s INCREMENT %%s '
    'MINVALUE %%s MAXVALUE %%s START %%s CACHE %%s %%s)', t.name, field,
    CASE attidentity WHEN 'a' THEN 'ALWAYS' ELSE 'BY DEFAULT' END, s.name, seqincrement, seqmin,
    seqmax, seqstart, seqcache, CASE WHEN seqcycle THEN 'CYCLE' ELSE 'NO CYCLE' END), s.name
  FROM t, s WHERE attidentity <> ''
UNION ALL SELECT 3, NULL, format('GRANT %%s ON %%s TO %%s', privilege_type, r.name,
    CASE WHEN grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END) ||
    CASE WHEN is_grantable THEN ' WITH GRANT OPTION' ELSE '' END, NULL
  FROM (SELECT 'TABLE ' || name, relacl, relowner FROM t UNION ALL
    SELECT 'SEQUENCE ' || name, relacl, relowner FROM s WHERE attidentity <> '')
  r(name, relacl, relowner), aclexplode(relacl) WHERE grantee <> relowner
UNION ALL SELECT 3, format('DROP POLICY %%I ON %%s', p.polname, name),
  format('CREATE POLICY %%I ON %%s AS %%s FOR %%s TO %%s', p.polname, name,
    CASE WHEN p.polpermissive THEN 'PERMISSIVE' ELSE 'RESTRICTIVE' END,
    CASE p.polcmd WHEN 'r' THEN 'SELECT' WHEN 'a' THEN 'INSERT' WHEN 'w' THEN 'UPDATE'
      WHEN 'd' THEN 'DELETE' ELSE 'ALL' END,
    (SELECT string_agg(CASE WHEN r = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(r)) END, ', ')
      FROM unnest(p.polroles) r))
    || coalesce(' USING (' || pg_get_expr(p.polqual, p.polrelid) || ')', '')
    || coalesce(' WITH CHECK (' || pg_get_expr(p.polwithcheck, p.polrelid) || ')', ''), NULL
  FROM t JOIN pg_policy p ON p.polrelid = t.oid
UNION ALL SELECT 3, format('DROP TRIGGER %%I ON %%s', tgname, name), pg_get_triggerdef(g.oid) ||
    format('; ALTER TABLE %%s %%s TRIGGER %%I', name, CASE tgenabled WHEN 'R' THEN 'ENABLE REPLICA'
      WHEN 'A' THEN 'ENABLE ALWAYS' WHEN 'D' THEN 'DISABLE' ELSE 'ENABLE' END, tgname), NULL
  FROM t JOIN pg_trigger g ON g.tgrelid = t.oid WHERE NOT tgisinternal
UNION ALL SELECT 3, format('ALTER TABLE %%I.%%I DROP CONSTRAINT %%I', n.nspname, c.relname,
    k.conname), format('ALTER TABLE %%I.%%I ADD CONSTRAINT %%I %%s NOT VALID', n.nspname, c.relname,
    k.conname, pg_get_constraintdef(k.oid)), NULL
  FROM t JOIN pg_constraint k ON t.oid IN (k.conrelid, k.confrelid) AND k.contype = 'f'
    AND k.conparentid = 0
  JOIN pg_class c ON c.oid = k.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
UNION ALL SELECT 3, NULL, format('CREATE OR REPLACE VIEW %%I.%%I %%s AS %%s', n.nspname, v.relname,
    'WITH (' || array_to_string(v.reloptions, ', ') || ')', pg_get_viewdef(v.oid)), NULL
  FROM pg_class v JOIN pg_namespace n ON n.oid = v.relnamespace
  WHERE v.relkind = 'v' AND v.oid IN (SELECT w.ev_class FROM pg_rewrite w JOIN pg_depend d
    ON d.objid = w.oid AND d.classid = 'pg_rewrite'::regclass
    AND d.refclassid = 'pg_class'::regclass WHERE d.refobjid = %(oid)s)
ORDER BY 1"""

#: statements that write comments and targets of statistics again, for a table of the same name
_REMARKS = """
WITH t AS (SELECT c.oid, format('%%I.%%I', n.nspname, c.relname) AS name, n.nspname FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s)
SELECT format('COMMENT ON TABLE %%s IS %%L', name, obj_description(oid, 'pg_class')) FROM t
UNION ALL SELECT format('COMMENT ON COLUMN %%s.%%I IS %%L', name, a.attname,
  col_description(t.oid, a.attnum)) FROM t JOIN pg_attribute a ON a.attrelid = t.oid
  WHERE a.attnum > 0 AND NOT a.attisdropped
UNION ALL SELECT format('ALTER TABLE %%s ALTER %%I SET STATISTICS %%s, ALTER %%2$I RESET '
  '(n_distinct, n_distinct_inherited)', name, a.attname, coalesce(a.attstattarget, -1)) ||
  coalesce(', ALTER ' || quote_ident(a.attname) || ' SET (' ||
    array_to_string(a.attoptions, ', ') || ')', '')
  FROM t JOIN pg_attribute a ON a.attrelid = t.oid
  WHERE a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated <> 'v'
UNION ALL SELECT format('COMMENT ON INDEX %%I.%%I IS %%L', nspname, x.relname,
  obj_description(x.oid, 'pg_class')) FROM t JOIN pg_index i ON i.indrelid = t.oid
  JOIN pg_class x ON x.oid = i.indexrelid
UNION ALL SELECT format('COMMENT ON CONSTRAINT %%I ON %%s IS %%L', k.conname, name,
  obj_description(k.oid, 'pg_constraint')) FROM t JOIN pg_constraint k ON k.conrelid = t.oid
  WHERE k.contype <> 'n'
UNION ALL SELECT format('COMMENT ON CONSTRAINT %%I ON %%I.%%I IS %%L', k.conname, m.nspname,
  c.relname, obj_description(k.oid, 'pg_constraint')) FROM t
  JOIN pg_constraint k ON k.confrelid = t.oid AND k.conrelid <> t.oid AND k.conparentid = 0
  JOIN pg_class c ON c.oid = k.conrelid JOIN pg_namespace m ON m.oid = c.relnamespace
UNION ALL SELECT format('ALTER INDEX %%I.%%I ALTER COLUMN %%s SET STATISTICS %%s', nspname,
  x.relname, a.attnum, coalesce(a.attstattarget, -1)) FROM t JOIN pg_index i ON i.indrelid = t.oid
  JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_attribute a ON a.attrelid = x.oid
  WHERE i.indkey[a.attnum - 1] = 0
UNION ALL SELECT format('COMMENT ON TRIGGER %%I ON %%s IS %%L', g.tgname, name,
  obj_description(g.oid, 'pg_trigger')) FROM t JOIN pg_trigger g ON g.tgrelid = t.oid
  WHERE NOT g.tgisinternal
UNION ALL SELECT format('COMMENT ON POLICY %%I ON %%s IS %%L', p.polname, name,
  obj_description(p.oid, 'pg_policy')) FROM t JOIN pg_policy p ON p.polrelid = t.oid"""


class Attachment(NamedTuple):
    """Something of a table. take, give: statements; sequence: of an identity, which give makes."""

    rank: int
    take: str | None
    give: str
    sequence: str | None


def detach(connection: StoreConnection, table: PgRelation) -> list[Attachment]:
    """Take what may be attached to one table only: keys, policies, triggers and identities.

    Returns it, and what both tables can have.
    """
    found = [Attachment(*row) for row in connection.execute(_MOVED, {"oid": table.oid}).fetchall()]
    remarks = connection.execute(_REMARKS, [table.oid]).fetchall()
    attachments = []
    for each in found:
        give = each.give
        if each.sequence is not None:
            name = sql.Literal(each.sequence).as_string(connection)
            [(setval,)] = connection.execute(
                f"SELECT format('; SELECT setval(%L, %s, %L)', {name}, last_value, is_called) "  # noqa: S608 (quoted)
                f"FROM {each.sequence}".encode()
            ).fetchall()
            give += setval
        if each.take is not None:
            connection.execute(each.take.encode())
        attachments.append(each._replace(give=give))
    return attachments + [Attachment(4, None, text, None) for [text] in remarks]


def attach(
    connection: StoreConnection, table: sql.Identifier, attachments: list[Attachment]
) -> None:
    """Give all of it to the table that has the name now."""
    owned = [each for each in attachments if each.rank < 3]
    for each in owned:
        connection.execute(each.give.encode())
    revoke_others(connection, table)
    for each in owned:
        if each.sequence is not None:
            revoke_others(connection, sql.SQL(each.sequence), "SEQUENCE")
    for each in attachments[len(owned) :]:
        connection.execute(each.give.encode())


def revoke_others(connection: StoreConnection, target: sql.Composable, kind: str = "TABLE") -> None:
    """Revoke the rights of everyone but the owner, which default privileges may have granted."""
    acl = (
        "coalesce(proacl, acldefault('f', proowner)), proowner FROM pg_proc WHERE oid = %s::regproc"
        if kind == "FUNCTION"
        else "relacl, relowner FROM pg_class WHERE oid = %s::regclass"
    )
    roles = connection.execute(
        sql.SQL(
            "SELECT DISTINCT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE "
            "quote_ident(pg_get_userbyid(a.grantee)) END FROM (SELECT {}) o(acl, owner), "
            "aclexplode(o.acl) a WHERE a.grantee <> o.owner"
        ).format(sql.SQL(acl)),
        [target.as_string(connection)],
    ).fetchall()
    for [role] in roles:
        connection.run("REVOKE ALL ON {} {} FROM {}", sql.SQL(kind), target, sql.SQL(role))


_NAMES_OF_NOT_NULL = """
SELECT b.conname, f.conname FROM pg_constraint b
JOIN pg_attribute i ON i.attrelid = b.conrelid AND i.attnum = b.conkey[1]
JOIN pg_attribute j ON j.attrelid = %s AND j.attname = i.attname
JOIN pg_constraint f ON f.conrelid = j.attrelid AND f.contype = 'n' AND f.conkey[1] = j.attnum
WHERE b.conrelid = %s AND b.contype = 'n' AND b.conname <> f.conname"""


def name_not_null(connection: StoreConnection, front: PgRelation, back: PgRelation) -> None:
    """Name the constraints NOT NULL of `back` as those of `front`: they have names since 18."""
    for name, wanted in connection.execute(_NAMES_OF_NOT_NULL, [front.oid, back.oid]).fetchall():
        connection.run("ALTER TABLE {} RENAME CONSTRAINT {} TO {}", back.identifier, name, wanted)


#: what `create_copy` copies; parameters: oid, and name of the column of vectors
_DEFINITIONS = """
SELECT 'column ' || quote_ident(a.attname), concat_ws(', ', 'number ' || row_number() OVER (
    ORDER BY a.attnum), CASE WHEN a.attname <> %(column)s THEN
    format_type(a.atttypid, a.atttypmod) END, CASE WHEN a.attnotnull THEN 'NOT NULL' END,
  'DEFAULT ' || pg_get_expr(d.adbin, d.adrelid), 'generated ' || nullif(a.attgenerated::text, ''),
  (SELECT 'COLLATE ' || quote_ident(c.collname) FROM pg_collation c WHERE c.oid = a.attcollation
    AND c.collname <> 'default'),
  'storage ' || a.attstorage::text, 'compression ' || nullif(a.attcompression::text, ''))
FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped
UNION ALL SELECT 'constraint ' || quote_ident(conname), pg_get_constraintdef(oid)
FROM pg_constraint WHERE conrelid = %(oid)s AND contype = 'c'
UNION ALL SELECT 'storage', array_to_string(reloptions, ' ') FROM pg_class WHERE oid = %(oid)s
"""


def require_same_definitions(connection: StoreConnection, layout: PgLayout) -> None:
    """Raises StoreChanged if one table was altered in a way that a switch would undo."""
    found = [
        dict(
            connection.execute(
                _DEFINITIONS, {"oid": each.relation.oid, "column": each.column}
            ).fetchall()
        )
        for each in (layout.seen, layout.other)
    ]
    seen, other = found
    hidden = layout.other.relation.name
    different = [
        f"{name} is ({seen.get(name, 'absent')}), and ({other.get(name, 'absent')}) in {hidden}"
        for name in sorted(seen.keys() | other.keys())
        if seen.get(name) != other.get(name)
    ]
    if different:
        raise StoreChanged(
            f"The table {layout.table.name!r} was altered during the migration: "
            f"{'; '.join(different)}. Undo the change, or alter {hidden} in the same way, and try "
            "again."
        )


#: foreign keys from the table and to it that are not validated, but enforced
_TO_VALIDATE = """
SELECT format('ALTER TABLE %%I.%%I VALIDATE CONSTRAINT %%I', n.nspname, c.relname, k.conname)
FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE k.contype = 'f' AND k.conparentid = 0 AND %s IN (k.conrelid, k.confrelid)
  AND NOT k.convalidated AND to_jsonb(k) ->> 'conenforced' IS DISTINCT FROM 'false'"""


def validate_keys(connection: StoreConnection, table: PgRelation) -> None:
    """Validate the foreign keys that a switch has added without reading the rows."""
    for [statement] in connection.execute(_TO_VALIDATE, [table.oid]).fetchall():
        with suppress(psycopg.errors.ForeignKeyViolation):  # a client's own key, added meanwhile
            connection.execute(statement.encode())
