"""What belongs to a table besides its rows, and moves to the table that replaces it.

The second table gets copies of the indexes under hidden names, until both names are exchanged.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from app.errors import StoreChanged, StoreUnsupported
from app.stores.pgvector.connections import StoreConnection
from app.stores.pgvector.copying import delete_waiting
from app.stores.pgvector.facts import grants, revoke_others
from app.stores.pgvector.layout import (
    PgLayout,
    PgRelation,
    PgState,
    PgVectors,
    name_of,
    relation_named,
)

_TABLE_INDEXES = """
SELECT x.relname, pg_get_indexdef(i.indexrelid), format('CREATE %%sINDEX %%I ON %%I.%%I USING ',
  CASE WHEN i.indisunique THEN 'UNIQUE ' ELSE '' END, x.relname, n.nspname, c.relname),
  i.indisunique, coalesce(k.contype::text, ''), coalesce(k.condeferrable, false),
  coalesce(k.condeferred, false), array(SELECT a.attname::text FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attnum = ANY(i.indkey[0:i.indnkeyatts - 1])),
  i.indpred IS NULL AND i.indexprs IS NULL AND i.indimmediate
FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_class c ON c.oid = i.indrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_constraint k ON k.conindid = x.oid AND k.conrelid = c.oid AND k.contype IN ('p', 'u')
WHERE i.indrelid = %s AND i.indisvalid ORDER BY i.indexrelid"""


@dataclass(frozen=True)
class CopiedIndex:
    """An index of the table that clients see. tail: its definition from USING on."""

    name: str
    tail: str
    unique: bool
    constraint: str
    deferrable: bool
    deferred: bool
    columns: tuple[str, ...]
    plain: bool

    def hidden(self, tag: str) -> str:
        """The name of the same index of the other table."""
        tail = re.sub(r"\bhalfvec_(\w+_ops)\b", r"vector_\1", self.tail)
        content = repr((self.name, tail, self.unique, self.constraint, self.deferred))
        digest = hashlib.sha256(content.encode()).hexdigest()[:16]
        return name_of(tag, f"index_{digest}")

    def definition(self, vectors: PgVectors) -> str:
        """The tail for a column of vectors of another type."""
        if vectors.column not in self.columns:
            return self.tail
        return re.sub(r"\b(?:vector|halfvec)_(\w+_ops)\b", vectors.type_name + r"_\1", self.tail)

    def is_of_key(self, key: str) -> bool:
        return self.unique and self.plain and self.columns == (key,)


def copied_indexes(connection: StoreConnection, table: PgRelation) -> list[CopiedIndex]:
    found = []
    for row in connection.execute(_TABLE_INDEXES, [table.oid]).fetchall():
        name, definition, beginning = row[:3]
        if definition is None:
            continue  # a client dropped the index while the query ran
        if not definition.startswith(beginning):
            raise StoreUnsupported(
                f"The index {name!r} cannot be copied. Drop it for the migration."
            )
        tail = definition.removeprefix(beginning)
        found.append(CopiedIndex(*[name, tail, *row[3:7], tuple(row[7]), row[8]]))
    return found


def copy_key_index(connection: StoreConnection, layout: PgLayout, state: PgState) -> None:
    """Build the unique index of the key in a new copy of the table."""
    back = relation_named(connection, layout.table.schema, state.new)
    for each in copied_indexes(connection, layout.table):
        if each.is_of_key(layout.key.name):
            _build(connection, each, each.hidden(state.tag), back, each.tail)
            return


def copy_indexes(connection: StoreConnection, layout: PgLayout, tag: str) -> None:
    """Build what the other table lacks of the indexes that clients see, and drop other ones."""
    back = layout.other.relation
    present = {each.name for each in copied_indexes(connection, back)}
    for each in copied_indexes(connection, layout.table):
        hidden = each.hidden(tag)
        if hidden in present:
            present.remove(hidden)
            continue
        tail = each.definition(layout.other)
        with connection.transaction():
            try:
                with connection.transaction():
                    _build(connection, each, hidden, back, tail)
            except psycopg.errors.UniqueViolation:
                delete_waiting(connection, layout)
                _build(connection, each, hidden, back, tail)
    for name in present:
        _drop(connection, back, name)


def _build(
    connection: StoreConnection, index: CopiedIndex, hidden: str, back: PgRelation, tail: str
) -> None:
    name = sql.Identifier(hidden)
    connection.run(
        "CREATE {} INDEX {} ON {} USING {}",
        sql.SQL("UNIQUE" if index.unique else ""),
        name,
        back.identifier,
        sql.SQL(tail),
    )
    if index.constraint:
        connection.run(
            "ALTER TABLE {} ADD CONSTRAINT {} {} USING INDEX {} {}",
            back.identifier,
            name,
            sql.SQL("PRIMARY KEY" if index.constraint == "p" else "UNIQUE"),
            name,
            sql.SQL(
                ("DEFERRABLE" if index.deferrable else "")
                + (" INITIALLY DEFERRED" if index.deferred else "")
            ),
        )


def _drop(connection: StoreConnection, table: PgRelation, name: str) -> None:
    for statement in (
        sql.SQL("ALTER TABLE {} DROP CONSTRAINT IF EXISTS {}").format(
            table.identifier, sql.Identifier(name)
        ),
        sql.SQL("DROP INDEX IF EXISTS {}").format(sql.Identifier(table.schema, name)),
    ):
        connection.execute(statement)


def has_same_indexes(connection: StoreConnection, layout: PgLayout, tag: str) -> bool:
    """Return whether the other table has a copy of each index that clients see, and no other."""
    present = {each.name for each in copied_indexes(connection, layout.other.relation)}
    return present == {each.hidden(tag) for each in copied_indexes(connection, layout.table)}


def exchange_names(connection: StoreConnection, tag: str, front: PgRelation) -> None:
    """Exchange the names of the indexes of both tables."""
    for each in copied_indexes(connection, front):
        exchange(connection, "INDEX", front.schema, (each.name, each.hidden(tag)), tag)


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


def exchange(
    connection: StoreConnection, kind: str, schema: str, names: tuple[str, str], tag: str
) -> None:
    """Exchange two names of relations of one kind."""
    between = name_of(tag, "between")
    for old, new in ((names[0], between), (names[1], names[0]), (between, names[1])):
        connection.run("ALTER {} {} RENAME TO {}", sql.SQL(kind), sql.Identifier(schema, old), new)


_POLICIES = """
SELECT p.polname, format('CREATE POLICY %%I ON %%I.%%I AS %%s FOR %%s TO %%s', p.polname, n.nspname,
    c.relname, CASE WHEN p.polpermissive THEN 'PERMISSIVE' ELSE 'RESTRICTIVE' END,
    CASE p.polcmd WHEN 'r' THEN 'SELECT' WHEN 'a' THEN 'INSERT' WHEN 'w' THEN 'UPDATE'
      WHEN 'd' THEN 'DELETE' ELSE 'ALL' END,
    (SELECT string_agg(CASE WHEN r = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(r)) END, ', ')
      FROM unnest(p.polroles) r))
  || coalesce(' USING (' || pg_get_expr(p.polqual, p.polrelid) || ')', '')
  || coalesce(' WITH CHECK (' || pg_get_expr(p.polwithcheck, p.polrelid) || ')', '')
FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE p.polrelid = %s"""

_TRIGGERS_OF = """
SELECT tgname, pg_get_triggerdef(oid), tgenabled::text FROM pg_trigger
WHERE tgrelid = %s AND NOT tgisinternal ORDER BY oid"""

_MODES = {"R": "ENABLE REPLICA", "A": "ENABLE ALWAYS", "D": "DISABLE"}

#: whether the role may lock a table; else only the drop of a foreign key locks it
_MAY_LOCK: LiteralString = (
    "(pg_has_role(r.relowner, 'USAGE') OR has_table_privilege(r.oid, 'UPDATE, DELETE, TRUNCATE'))"
)

_FOREIGN_KEYS = f"""
SELECT n.nspname, c.relname, k.conname, pg_get_constraintdef(k.oid), k.convalidated, {_MAY_LOCK}
FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_class r ON r.oid = k.confrelid
WHERE k.contype = 'f' AND %s IN (k.conrelid, k.confrelid) AND k.conparentid = 0 ORDER BY k.oid"""  # noqa: S608 (constants)

#: statements that lock all that a switch changes. `LOCK TABLE` would lock all tables of a view
_LOCKS = f"""
WITH RECURSIVE readers(oid) AS (SELECT %(front)s::oid UNION SELECT w.ev_class FROM readers
  JOIN pg_depend d ON d.refobjid = readers.oid AND d.refclassid = 'pg_class'::regclass
    AND d.classid = 'pg_rewrite'::regclass JOIN pg_rewrite w ON w.oid = d.objid),
keys AS (SELECT unnest(ARRAY[conrelid, confrelid]) AS oid FROM pg_constraint
  WHERE contype = 'f' AND %(front)s IN (conrelid, confrelid) AND conparentid = 0)
SELECT format(CASE WHEN r.relkind = 'v' THEN 'ALTER VIEW %%1$I.%%2$I SET SCHEMA %%1$I'
  WHEN r.relkind = 'p' THEN 'LOCK TABLE %%I.%%I IN ACCESS EXCLUSIVE MODE'
  ELSE 'LOCK TABLE ONLY %%I.%%I IN ACCESS EXCLUSIVE MODE' END, n.nspname, r.relname)
FROM pg_class r JOIN pg_namespace n ON n.oid = r.relnamespace
WHERE r.oid IN (%(front)s, %(other)s) OR r.oid IN (SELECT oid FROM keys) AND {_MAY_LOCK}
  OR r.oid IN (SELECT oid FROM readers) AND r.relkind = 'v' AND r.relpersistence <> 't'
  AND pg_has_role(r.relowner, 'USAGE')
ORDER BY r.oid <> %(front)s, r.oid <> %(other)s, r.relkind = 'v', r.oid"""  # noqa: S608 (constants)

#: within one statement, so that no round trip counts; each lock waits for at most lock_timeout
_LOCK_BODY = """
DECLARE began timestamptz := clock_timestamp(); statement text; BEGIN
  FOREACH statement IN ARRAY {}::text[] LOOP
    IF extract(epoch FROM clock_timestamp() - began) > {} THEN
      RAISE EXCEPTION USING ERRCODE = 'lock_not_available';
    END IF;
    EXECUTE statement;
  END LOOP;
END"""

_SEQUENCES = """
SELECT a.attname, n.nspname, s.relname, d.deptype = 'i', s.oid::bigint
FROM pg_depend d JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S'
JOIN pg_namespace n ON n.oid = s.relnamespace
JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
  AND d.refobjid = %s AND d.deptype IN ('a', 'i') ORDER BY a.attnum"""


#: statements that write comments and targets of statistics again, for a table of the same name
_REMARKS = """
WITH t AS (SELECT c.oid, format('%%I.%%I', n.nspname, c.relname) AS name, n.nspname FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s)
SELECT format('COMMENT ON TABLE %%s IS %%L', name, obj_description(oid, 'pg_class')) FROM t
UNION ALL SELECT format('COMMENT ON COLUMN %%s.%%I IS %%L', name, a.attname,
  col_description(t.oid, a.attnum)) FROM t JOIN pg_attribute a ON a.attrelid = t.oid
  WHERE a.attnum > 0 AND NOT a.attisdropped
UNION ALL SELECT format('ALTER TABLE %%s ALTER COLUMN %%I SET STATISTICS %%s', name, a.attname,
  coalesce(a.attstattarget, -1)) FROM t JOIN pg_attribute a ON a.attrelid = t.oid
  WHERE a.attnum > 0 AND NOT a.attisdropped
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
  WHERE NOT g.tgisinternal AND NOT starts_with(g.tgname, 'anchorage_')
UNION ALL SELECT format('COMMENT ON POLICY %%I ON %%s IS %%L', p.polname, name,
  obj_description(p.oid, 'pg_policy')) FROM t JOIN pg_policy p ON p.polrelid = t.oid"""


def locks_of(connection: StoreConnection, layout: PgLayout) -> list[str]:
    """Return statements that lock both tables, those of foreign keys, and the views."""
    oids = {"front": layout.table.oid, "other": layout.other.relation.oid}
    return [text for [text] in connection.execute(_LOCKS, oids).fetchall()]


def lock_all(connection: StoreConnection, locks: Sequence[str], within_s: float) -> None:
    """Lock what `locks_of` found, the last one at latest after `within_s`, or raise."""
    body = sql.SQL(_LOCK_BODY).format(sql.Literal(list(locks)), sql.Literal(within_s))
    connection.run("DO {}", sql.Literal(body.as_string(connection)))


@dataclass(frozen=True)
class Attachments:
    """Statements that create again what was taken from a table, for a table of its name.

    foreign_keys  (schema, table, name) of those that were valid
    """

    statements: Sequence[sql.SQL | sql.Composed]
    foreign_keys: Sequence[Sequence[str]]


def detach(
    connection: StoreConnection, table: PgRelation, before_lock: Callable[[], None]
) -> Attachments:
    """Drop the table's foreign keys in both directions, policies and triggers.

    before_lock  is called before each foreign key to a table that the role may not lock itself
    Returns them, and all comments.
    """
    statements: list[sql.SQL | sql.Composed] = []
    remarks = [sql.SQL(text) for [text] in connection.execute(_REMARKS, [table.oid]).fetchall()]
    valid = []
    for name, text in connection.execute(_POLICIES, [table.oid]).fetchall():
        statements.append(sql.SQL(text))
        connection.run("DROP POLICY {} ON {}", name, table.identifier)
    for name, text, mode in connection.execute(_TRIGGERS_OF, [table.oid]).fetchall():
        names = {"trigger": sql.Identifier(name), "table": table.identifier}
        statements.append(sql.SQL(text))
        if mode in _MODES:
            statements.append(
                sql.SQL("ALTER TABLE {table} {mode} TRIGGER {trigger}").format(
                    mode=sql.SQL(_MODES[mode]), **names
                )
            )
        connection.run("DROP TRIGGER {trigger} ON {table}", **names)
    keys = connection.execute(_FOREIGN_KEYS, [table.oid]).fetchall()
    for schema, name, key, text, validated, is_locked in keys:
        names = {"table": sql.Identifier(schema, name), "key": sql.Identifier(key)}
        wait = "" if text.endswith(("NOT VALID", "NOT ENFORCED")) else " NOT VALID"
        statements.append(
            sql.SQL("ALTER TABLE {table} ADD CONSTRAINT {key} {text}").format(
                text=sql.SQL(text + wait), **names
            )
        )
        if validated:
            valid.append((schema, name, key))
        if not is_locked:
            before_lock()
        connection.run("ALTER TABLE {table} DROP CONSTRAINT {key}", **names)
    return Attachments([*statements, *remarks], valid)


#: what `create_copy` copies; parameters: oid, and name of the column of vectors
_DEFINITIONS = """
SELECT 'column ' || quote_ident(a.attname), concat_ws(', ', 'number ' || row_number() OVER (
    ORDER BY a.attnum), CASE WHEN a.attname <> %(column)s THEN
    format_type(a.atttypid, a.atttypmod) END, CASE WHEN a.attnotnull THEN 'NOT NULL' END,
  'DEFAULT ' || pg_get_expr(d.adbin, d.adrelid), 'generated ' || nullif(a.attgenerated::text, ''),
  CASE WHEN a.attidentity <> '' THEN 'identity' END,
  (SELECT concat_ws(' ', s.seqincrement, s.seqmin, s.seqmax,
    s.seqcache, s.seqcycle) FROM pg_depend p JOIN pg_sequence s ON s.seqrelid = p.objid
    WHERE p.refobjid = a.attrelid AND p.refobjsubid = a.attnum AND p.deptype = 'i'),
  (SELECT 'COLLATE ' || quote_ident(c.collname) FROM pg_collation c WHERE c.oid = a.attcollation
    AND c.collname <> 'default'),
  'storage ' || a.attstorage::text, 'compression ' || nullif(a.attcompression::text, ''),
  array_to_string(a.attoptions, ' '))
FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped
UNION ALL SELECT 'constraint ' || quote_ident(conname), pg_get_constraintdef(oid)
FROM pg_constraint WHERE conrelid = %(oid)s AND contype = 'c'
UNION ALL SELECT 'storage', concat_ws(' ', relpersistence, (SELECT spcname FROM pg_tablespace s
  WHERE s.oid = reltablespace), array_to_string(reloptions, ' ')) FROM pg_class WHERE oid = %(oid)s
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


def copy_rights(connection: StoreConnection, front: PgRelation, back: PgRelation) -> None:
    """Give `back` the owner, the rights, and the switches of row security."""
    target = back.identifier
    row_security = "ENABLE" if front.row_security else "DISABLE"
    forced = "FORCE" if front.force_row_security else "NO FORCE"
    connection.run("ALTER TABLE {} OWNER TO {}", target, front.owner)
    _copy_grants(connection, front.oid, target)
    for switch in (row_security, forced):
        connection.run("ALTER TABLE {} {} ROW LEVEL SECURITY", target, sql.SQL(switch))


def _copy_grants(
    connection: StoreConnection, front: int, target: sql.Identifier, kind: str = "TABLE"
) -> None:
    revoke_others(connection, target, kind)
    for statement in grants(connection, front, sql.SQL(kind + " {}").format(target)):
        connection.execute(statement)


def move_sequences(
    connection: StoreConnection,
    tag: str,
    front: PgRelation,
    back: PgRelation,
    now: tuple[PgRelation, PgRelation],
) -> None:
    """Make the sequences of `front` continue in `back`. now: both tables with exchanged names.

    A serial's sequence changes its owner. An identity has its own sequence in each table, which
    is GENERATED BY DEFAULT in the table that clients do not see.
    """
    front_now, back_now = now
    hidden: dict[str, Any] = {
        row[0]: row[1:] for row in connection.execute(_SEQUENCES, [back.oid]).fetchall() if row[3]
    }
    for column, schema, name, identity, oid in connection.execute(
        _SEQUENCES, [front.oid]
    ).fetchall():
        sequence = sql.Identifier(schema, name)
        if not identity:
            connection.run(
                "ALTER SEQUENCE {} OWNED BY {}",
                sequence,
                sql.Identifier(back_now.schema, back_now.name, column),
            )
            continue
        modes = ("BY DEFAULT", "ALWAYS" if front.column(column).identity == "a" else "BY DEFAULT")
        for table, mode in zip((front_now, back_now), modes, strict=True):
            connection.run(
                "ALTER TABLE {} ALTER {} SET GENERATED {}", table.identifier, column, sql.SQL(mode)
            )
        # The new names also lock both sequences: no client draws a number after it is read.
        exchange(connection, "SEQUENCE", schema, (name, hidden[column][1]), tag)
        connection.run(
            "SELECT setval({}::regclass, last_value, is_called) FROM {}",
            sql.Literal(sequence.as_string(connection)),
            sql.Identifier(hidden[column][0], hidden[column][1]),
        )
        _copy_grants(connection, oid, sequence, "SEQUENCE")


def attach(connection: StoreConnection, attachments: Attachments) -> None:
    connection.execute(sql.SQL("; ").join(attachments.statements))


def validate(connection: StoreConnection, key: Sequence[str]) -> None:
    """Validate a foreign key, while clients write."""
    schema, table, name = key
    row = connection.execute(
        "SELECT k.convalidated FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid "
        "JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relname = %s AND k.conname = %s",
        [schema, table, name],
    ).fetchone()
    if row is not None and not row[0]:
        connection.run("ALTER TABLE {} VALIDATE CONSTRAINT {}", sql.Identifier(schema, table), name)
