"""The second table of a migration, which takes over what belongs to the first.

It has the same columns, options and indexes, whose names a switch exchanges. All else is moved. The
catalogue writes the statements. They name the table by its name, which the other table has when
those run that give.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import LiteralString

import psycopg
from psycopg import sql

from app.errors import StoreChanged, StoreUnsupported
from app.stores.pgvector.connections import StoreConnection
from app.stores.pgvector.following import Follower
from app.stores.pgvector.tables import PgLayout, PgTable, make_private, name_of

#: statements that set what LIKE does not copy, or a change of the type forgets
_OPTIONS: LiteralString = """
SELECT format('ALTER TABLE %%s ALTER %%I SET STORAGE %%s', %(new)s::text, attname, CASE attstorage
  WHEN 'p' THEN 'PLAIN' WHEN 'e' THEN 'EXTERNAL' WHEN 'm' THEN 'MAIN' ELSE 'EXTENDED' END)
FROM pg_attribute WHERE attrelid = %(oid)s AND attname = %(column)s
UNION ALL SELECT 'ALTER TABLE ' || %(new)s || ' SET (' || array_to_string(reloptions, ', ') || ')'
FROM pg_class WHERE oid = %(oid)s AND reloptions IS NOT NULL"""

#: what `create_second` copies. Constraints NOT NULL have names since PostgreSQL 18
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
UNION ALL SELECT 'constraint ' || quote_ident(conname), pg_get_constraintdef(oid)
FROM pg_constraint WHERE conrelid = %(oid)s AND contype IN ('c', 'n')
UNION ALL SELECT 'storage', array_to_string(reloptions, ' ') FROM pg_class WHERE oid = %(oid)s"""

_INDEXES: LiteralString = """
SELECT x.relname, pg_get_indexdef(i.indexrelid), format('CREATE %%sINDEX %%I ON %%I.%%I USING ',
  CASE WHEN i.indisunique THEN 'UNIQUE ' ELSE '' END, x.relname, n.nspname, c.relname),
  i.indisunique, CASE k.contype WHEN 'p' THEN 'PRIMARY KEY' WHEN 'u' THEN 'UNIQUE' END
    || ' USING INDEX %%s' || CASE WHEN k.condeferrable THEN ' DEFERRABLE' ELSE '' END
    || CASE WHEN k.condeferred THEN ' INITIALLY DEFERRED' ELSE '' END,
  array(SELECT a.attname::text FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attnum = ANY(i.indkey[0:i.indnkeyatts - 1])),
  i.indpred IS NULL AND i.indexprs IS NULL AND i.indimmediate
FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_class c ON c.oid = i.indrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_constraint k ON k.conindid = x.oid AND k.conrelid = c.oid AND k.contype IN ('p', 'u')
WHERE i.indrelid = %s AND i.indisvalid ORDER BY i.indexrelid"""


#: statements that take something from the table, and that give it to the other one
_MOVED: LiteralString = """
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
    CASE WHEN relforcerowsecurity THEN 'FORCE' ELSE 'NO FORCE' END) FROM t
UNION ALL SELECT 1, NULL, format('ALTER SEQUENCE %%s OWNED BY %%s.%%s', s.name, t.name, field)
  FROM t, s WHERE attidentity = ''
UNION ALL SELECT 1, format('CREATE TEMPORARY TABLE anchorage_%%s ON COMMIT DROP AS '
    'SELECT last_value, is_called FROM %%s; ALTER TABLE %%s ALTER %%s DROP IDENTITY',
    s.oid, s.name, t.name, field),
  format('ALTER TABLE %%s ALTER %%s ADD GENERATED %%s AS IDENTITY (SEQUENCE NAME %%s INCREMENT %%s '
    'MINVALUE %%s MAXVALUE %%s START %%s CACHE %%s %%s); '
    'SELECT setval(%%4$L, last_value, is_called) FROM pg_temp.anchorage_%%11$s', t.name, field,
    CASE attidentity WHEN 'a' THEN 'ALWAYS' ELSE 'BY DEFAULT' END, s.name, seqincrement, seqmin,
    seqmax, seqstart, seqcache, CASE WHEN seqcycle THEN 'CYCLE' ELSE 'NO CYCLE' END, s.oid)
  FROM t, s WHERE attidentity <> ''
UNION ALL SELECT 2, NULL, format('REVOKE ALL ON SEQUENCE %%s FROM %%s', s.name,
    CASE WHEN grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END)
  FROM s, pg_default_acl, aclexplode(defaclacl)
  WHERE attidentity <> '' AND defaclobjtype = 'S' AND grantee <> s.relowner
UNION ALL SELECT 3, CASE WHEN kind = 'TABLE' THEN
    format('REVOKE ALL ON %%s %%s FROM %%s CASCADE', kind, r.name, role) END,
  format('GRANT %%s ON %%s %%s TO %%s', privilege_type, kind, r.name, role) ||
    CASE WHEN is_grantable THEN ' WITH GRANT OPTION' ELSE '' END
  FROM (SELECT 'TABLE', name, relacl, relowner FROM t UNION ALL
    SELECT 'SEQUENCE', name, relacl, relowner FROM s WHERE attidentity <> '')
  r(kind, name, relacl, relowner), aclexplode(relacl),
  LATERAL (SELECT CASE WHEN grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee))
    END) g(role) WHERE grantee <> relowner
UNION ALL SELECT 3, format('DROP POLICY %%I ON %%s', p.polname, name),
  format('CREATE POLICY %%I ON %%s AS %%s FOR %%s TO %%s', p.polname, name,
    CASE WHEN p.polpermissive THEN 'PERMISSIVE' ELSE 'RESTRICTIVE' END,
    CASE p.polcmd WHEN 'r' THEN 'SELECT' WHEN 'a' THEN 'INSERT' WHEN 'w' THEN 'UPDATE'
      WHEN 'd' THEN 'DELETE' ELSE 'ALL' END,
    (SELECT string_agg(CASE WHEN r = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(r)) END, ', ')
      FROM unnest(p.polroles) r))
    || coalesce(' USING (' || pg_get_expr(p.polqual, p.polrelid) || ')', '')
    || coalesce(' WITH CHECK (' || pg_get_expr(p.polwithcheck, p.polrelid) || ')', '')
  FROM t JOIN pg_policy p ON p.polrelid = t.oid
UNION ALL SELECT 3, format('DROP TRIGGER %%I ON %%s', tgname, name), pg_get_triggerdef(g.oid) ||
    format('; ALTER TABLE %%s %%s TRIGGER %%I', name, CASE tgenabled WHEN 'R' THEN 'ENABLE REPLICA'
      WHEN 'A' THEN 'ENABLE ALWAYS' WHEN 'D' THEN 'DISABLE' ELSE 'ENABLE' END, tgname)
  FROM t JOIN pg_trigger g ON g.tgrelid = t.oid WHERE NOT tgisinternal
UNION ALL SELECT 3, format('ALTER TABLE %%I.%%I DROP CONSTRAINT %%I', n.nspname, c.relname,
    k.conname), format('ALTER TABLE %%I.%%I ADD CONSTRAINT %%I %%s NOT VALID', n.nspname, c.relname,
    k.conname, pg_get_constraintdef(k.oid))
  FROM t JOIN pg_constraint k ON t.oid IN (k.conrelid, k.confrelid) AND k.contype = 'f'
    AND k.conparentid = 0
  JOIN pg_class c ON c.oid = k.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
UNION ALL SELECT 3, NULL, format('CREATE OR REPLACE VIEW %%I.%%I %%s AS %%s', n.nspname, v.relname,
    'WITH (' || array_to_string(v.reloptions, ', ') || ')', pg_get_viewdef(v.oid))
  FROM pg_class v JOIN pg_namespace n ON n.oid = v.relnamespace
  WHERE v.relkind = 'v' AND v.oid IN (SELECT w.ev_class FROM pg_rewrite w JOIN pg_depend d
    ON d.objid = w.oid AND d.classid = 'pg_rewrite'::regclass
    AND d.refclassid = 'pg_class'::regclass WHERE d.refobjid = %(oid)s)
UNION ALL SELECT 3, NULL, format('COMMENT ON TABLE %%s IS %%L', name,
  obj_description(oid, 'pg_class')) FROM t
UNION ALL SELECT 3, NULL, format('COMMENT ON COLUMN %%s.%%I IS %%L', name, a.attname,
  col_description(t.oid, a.attnum)) FROM t JOIN pg_attribute a ON a.attrelid = t.oid
  WHERE a.attnum > 0 AND NOT a.attisdropped
ORDER BY 1"""

#: foreign keys from the table and to it that are not validated, but enforced
_TO_VALIDATE: LiteralString = """
SELECT format('ALTER TABLE %%I.%%I VALIDATE CONSTRAINT %%I', n.nspname, c.relname, k.conname)
FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE k.contype = 'f' AND k.conparentid = 0 AND %s IN (k.conrelid, k.confrelid)
  AND NOT k.convalidated AND to_jsonb(k) ->> 'conenforced' IS DISTINCT FROM 'false'"""


def create_second(
    connection: StoreConnection, first: PgTable, tag: str, type_name: str, dim: int
) -> None:
    """Create the table of the new vectors: the columns, checks and options of the client's.

    Until a switch, it has no rights, policies or row security, and only the index of the key.
    """
    vectors = first.vectors._replace(type_name=type_name)
    second = replace(first, name=name_of(tag, "new"), vectors=vectors)
    new, column = second.identifier, first.vectors.name
    connection.run(
        "CREATE TABLE {} (LIKE {} INCLUDING ALL EXCLUDING INDEXES EXCLUDING STATISTICS "
        "EXCLUDING IDENTITY)",
        new,
        first.identifier,
    )
    vector = sql.Identifier(connection.extension, type_name)
    connection.run("ALTER TABLE {} ALTER {} TYPE {}({})", new, column, vector, sql.Literal(dim))
    values = {"new": new.as_string(connection), "column": column, "oid": first.oid}
    for [statement] in connection.execute(_OPTIONS, values).fetchall():
        connection.execute(statement.encode())
    make_private(connection, "TABLE", new, first.owner)
    indexes = _indexes(connection, first)
    key = next(e for e in indexes if e.unique and e.plain and e.columns == [first.key.name])
    _build(connection, key, second, tag)


def require_same_definitions(connection: StoreConnection, layout: PgLayout) -> None:
    """Raises StoreChanged if one table was altered in a way that a switch would undo."""
    seen, other = (
        dict(
            connection.execute(
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


@dataclass(frozen=True)
class _Index:
    """tail: the definition from USING on; constraint: what makes one of it, if it is one."""

    name: str
    tail: str
    unique: bool
    constraint: str | None
    columns: list[str]
    plain: bool

    def hidden(self, tag: str) -> str:
        """The name of the same index of the other table."""
        tail = re.sub(r"\bhalfvec_(\w+_ops)\b", r"vector_\1", self.tail)
        content = repr((self.name, tail, self.unique, self.constraint))
        digest = hashlib.sha256(content.encode()).hexdigest()[:16]
        return name_of(tag, f"index_{digest}")


def _indexes(connection: StoreConnection, table: PgTable) -> list[_Index]:
    found = []
    for name, text, beginning, *rest in connection.execute(_INDEXES, [table.oid]).fetchall():
        if text is None:
            continue  # a client dropped the index while the query ran
        if not text.startswith(beginning):
            raise StoreUnsupported(
                f"The index {name!r} cannot be copied. Drop it for the migration."
            )
        found.append(_Index(name, text.removeprefix(beginning), *rest))
    return found


def copy_indexes(connection: StoreConnection, layout: PgLayout) -> None:
    """Build what the other table lacks of the indexes that clients see, and drop other ones."""
    back, tag = layout.other, layout.state.tag
    present = {each.name for each in _indexes(connection, back)}
    for each in _indexes(connection, layout.seen):
        name = each.hidden(tag)
        if name in present:
            present.remove(name)
            continue
        with connection.transaction():
            try:
                with connection.transaction():
                    _build(connection, each, back, tag)
            except psycopg.errors.UniqueViolation:
                Follower(connection, layout).delete_waiting()
                _build(connection, each, back, tag)
    for name in present:
        connection.run("ALTER TABLE {} DROP CONSTRAINT IF EXISTS {}", back.identifier, name)
        connection.run("DROP INDEX IF EXISTS {}", sql.Identifier(back.schema, name))


def _build(connection: StoreConnection, index: _Index, back: PgTable, tag: str) -> None:
    table, name = back.identifier, sql.Identifier(index.hidden(tag))
    unique, tail = sql.SQL("UNIQUE" if index.unique else ""), index.tail
    if back.vectors.name in index.columns:
        tail = re.sub(r"\b(?:vector|halfvec)_(\w+_ops)\b", back.vectors.type_name + r"_\1", tail)
    connection.run("CREATE {} INDEX {} ON {} USING {}", unique, name, table, sql.SQL(tail))
    if index.constraint is not None:
        constraint = sql.SQL(index.constraint % name.as_string(connection))
        connection.run("ALTER TABLE {} ADD CONSTRAINT {} {}", table, name, constraint)


def has_same_indexes(connection: StoreConnection, layout: PgLayout) -> bool:
    """Return whether the other table has a copy of each index that clients see, and no other."""
    present = {each.name for each in _indexes(connection, layout.other)}
    return present == {each.hidden(layout.state.tag) for each in _indexes(connection, layout.seen)}


def exchange_index_names(connection: StoreConnection, tag: str, front: PgTable) -> None:
    """Exchange the names of the indexes of both tables. front: the one whose names are hidden."""
    between = name_of(tag, "between")
    for each in _indexes(connection, front):
        hidden = each.hidden(tag)
        for old, new in ((each.name, between), (hidden, each.name), (between, hidden)):
            connection.run("ALTER INDEX {} RENAME TO {}", sql.Identifier(front.schema, old), new)


def detach(connection: StoreConnection, table: PgTable) -> list[str]:
    """Take what may be attached to one table only: rights, keys, policies, triggers, identities.

    Returns the statements that give it, and what both tables can have, to the other table.
    """
    found = connection.execute(_MOVED, {"oid": table.oid}).fetchall()
    for _, take, _ in found:
        if take is not None:
            connection.execute(take.encode())
    return [give for *_, give in found]


def validate_keys(connection: StoreConnection, table: PgTable) -> None:
    """Validate the foreign keys that a switch has added without reading the rows."""
    for [statement] in connection.execute(_TO_VALIDATE, [table.oid]).fetchall():
        with suppress(psycopg.errors.ForeignKeyViolation):  # a client's own key, added meanwhile
            connection.execute(statement.encode())
