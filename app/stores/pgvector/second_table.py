"""What a migration creates: the second table with its indexes, the queue, and the triggers.

The second table has the same columns, options and indexes as the first. The triggers put the keys
of changed rows into the queue.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import LiteralString

import psycopg
from psycopg import sql

from app.errors import StoreUnsupported
from app.stores.pgvector.connections import StoreConnection
from app.stores.pgvector.filters import match_rows
from app.stores.pgvector.tables import PgLayout, PgTable, name_of

#: statements that set what LIKE does not copy, or a change of the type forgets
_OPTIONS: LiteralString = """
SELECT format('ALTER TABLE %%s ALTER %%I SET STORAGE %%s', %(new)s::text, attname, CASE attstorage
  WHEN 'p' THEN 'PLAIN' WHEN 'e' THEN 'EXTERNAL' WHEN 'm' THEN 'MAIN' ELSE 'EXTENDED' END)
FROM pg_attribute WHERE attrelid = %(oid)s AND attname = %(column)s
UNION ALL SELECT 'ALTER TABLE ' || %(new)s || ' SET (' || array_to_string(reloptions, ', ') || ')'
FROM pg_class WHERE oid = %(oid)s AND reloptions IS NOT NULL"""

_OTHERS: LiteralString = """
SELECT DISTINCT CASE WHEN a.grantee = 0 THEN 'PUBLIC'
  ELSE quote_ident(pg_get_userbyid(a.grantee)) END
FROM (SELECT relacl, relowner FROM pg_class WHERE oid = to_regclass(%(name)s) UNION ALL
  SELECT coalesce(proacl, acldefault('f', proowner)), proowner FROM pg_proc
  WHERE oid = to_regproc(%(name)s)) o(acl, owner), aclexplode(o.acl) a WHERE a.grantee <> o.owner"""

_CAPTURE = """
CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $anchorage$
BEGIN
  IF TG_ARGV[0] = 'size' THEN
    RAISE EXCEPTION USING ERRCODE = 'data_exception',
      MESSAGE = 'expected ' || TG_ARGV[1] || ' dimensions: a migration has changed the model',
      HINT = 'Embed the text again by the model of the other rows, and repeat the statement.';
  END IF;
  IF TG_OP = 'TRUNCATE' THEN
    INSERT INTO {queue} (key) VALUES (NULL);
    RETURN NULL;
  END IF;
  IF TG_OP <> 'INSERT' THEN
    INSERT INTO {queue} (key, rows_only) VALUES (OLD.{key}, TG_NARGS > 0);
  END IF;
  IF TG_OP <> 'DELETE' AND (TG_OP = 'INSERT' OR NEW.{key} IS DISTINCT FROM OLD.{key}) THEN
    INSERT INTO {queue} (key) VALUES (NEW.{key});
  END IF;
  RETURN NULL;
END $anchorage$"""

# A dump shows IS DISTINCT FROM without the schema of its operator, and cannot be restored.
_CHANGED: LiteralString = (
    "OLD.{key} IS DISTINCT FROM NEW.{key} OR (OLD.{column} OPERATOR({schema}.=) NEW.{column} "
    "OR OLD.{column} IS NULL AND NEW.{column} IS NULL) IS NOT TRUE"
)

TRIGGERS: dict[str, LiteralString] = {
    "anchorage_capture": "CREATE TRIGGER {name} AFTER INSERT OR DELETE ON {table} FOR EACH ROW "
    "EXECUTE FUNCTION {function}()",
    "anchorage_capture_update": "CREATE TRIGGER {name} AFTER UPDATE ON {table} FOR EACH ROW "
    "WHEN ({changed}) EXECUTE FUNCTION {function}()",
    "anchorage_capture_rows": "CREATE TRIGGER {name} AFTER UPDATE ON {table} FOR EACH ROW "
    "WHEN (NOT ({changed})) EXECUTE FUNCTION {function}('rows')",
    "anchorage_capture_truncate": "CREATE TRIGGER {name} AFTER TRUNCATE ON {table} "
    "FOR EACH STATEMENT EXECUTE FUNCTION {function}()",
}
SIZE_TRIGGER = "anchorage_capture_size"
_CREATE_SIZE_TRIGGER: LiteralString = (
    "CREATE OR REPLACE TRIGGER {name} AFTER INSERT OR UPDATE ON {table} FOR EACH ROW WHEN ({rows} "
    "AND {schema}.vector_dims(NEW.{column}) <> {dim}) EXECUTE FUNCTION {function}('size', {dim})"
)

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


def create_second(first: PgTable, tag: str, type_name: str, dim: int) -> None:
    """Create the table of the new vectors: the columns, checks and options of the client's.

    Until a switch, it has no rights, policies or row security, and only the index of the key.
    """
    connection, column = first.connection, first.vectors.name
    vectors = first.vectors._replace(type_name=type_name)
    second = replace(first, name=name_of(tag, "new"), vectors=vectors)
    new = second.identifier
    connection.run(
        "CREATE TABLE {} (LIKE {} INCLUDING ALL EXCLUDING INDEXES EXCLUDING STATISTICS "
        "EXCLUDING IDENTITY)",
        new,
        first.identifier,
    )
    connection.run(
        "ALTER TABLE {} ALTER {} TYPE {}({})", new, column, second.vector_type, sql.Literal(dim)
    )
    values = {"new": new.as_string(connection), "column": column, "oid": first.oid}
    for [statement] in connection.execute(_OPTIONS, values).fetchall():
        connection.execute(statement.encode())
    _make_private(connection, "TABLE", new, first.owner)
    key = next(
        each
        for each in _indexes(first)
        if each.unique and each.plain and each.columns == [first.key.name]
    )
    _build(key, second, tag)


def create_keys(first: PgTable, tag: str) -> None:
    """Create the table of the new vectors of some rows: their keys, and vectors of any size."""
    new = replace(first, name=name_of(tag, "new")).identifier
    first.connection.run(
        "CREATE TABLE {} ({} {} PRIMARY KEY, {} {})",
        new,
        first.key.name,
        sql.SQL(first.key.type_text),
        first.vectors.name,
        first.vector_type,
    )
    _make_private(first.connection, "TABLE", new, first.owner)


def create_queue(layout: PgLayout) -> None:
    """Create the queue, and the function of the triggers, both of the table's owner.

    vector  what a row had when `delete_waiting` deleted it
    """
    seen, function = layout.seen, _function(layout.seen, layout.state.tag)
    layout.connection.run(
        "CREATE TABLE {} (seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key {}, "
        "rows_only boolean NOT NULL DEFAULT false, vector real[])",
        layout.queue,
        sql.SQL(seen.key_type),
    )
    layout.connection.run(_CAPTURE, queue=layout.queue, function=function, key=seen.key.name)
    _make_private(layout.connection, "TABLE", layout.queue, seen.owner)
    # Whoever may execute the function can put keys into the queue, by a trigger on another table.
    _make_private(layout.connection, "FUNCTION", function, seen.owner)


def _make_private(
    connection: StoreConnection, kind: LiteralString, target: sql.Identifier, owner: str
) -> None:
    """Give a new table or function to its owner, without the rights that others have by default."""
    connection.run("ALTER {} {} OWNER TO {}", sql.SQL(kind), target, owner)
    for [role] in connection.execute(_OTHERS, {"name": target.as_string(connection)}).fetchall():
        connection.run("REVOKE ALL ON {} {} FROM {}", sql.SQL(kind), target, sql.SQL(role))


def _function(table: PgTable, tag: str) -> sql.Identifier:
    return sql.Identifier(table.schema, name_of(tag, "capture"))


def start_capture(table: PgTable, tag: str) -> None:
    """Create the triggers. Waits for transactions that write to the table."""
    names = _names(table, tag)
    changed = sql.SQL(" OR ").join(
        [sql.SQL(_CHANGED).format(**names), *differing_texts(table, "old", "new")]
    )
    for name, definition in TRIGGERS.items():
        _trigger(table, name, definition, **names, changed=changed)


def require_size(table: PgTable, tag: str, dim: int) -> None:
    """Let the server refuse what was embedded before a switch. Blocks no reader."""
    if table.dim is None:
        names = _names(table, tag) | {"rows": match_rows(table, table.where or {}, "new")}
        size = sql.Literal(dim or None)  # unknown of an empty table: then all are allowed
        _trigger(table, SIZE_TRIGGER, _CREATE_SIZE_TRIGGER, **names, dim=size)


def _names(table: PgTable, tag: str) -> dict[str, sql.Composable]:
    return {
        "table": table.identifier,
        "function": _function(table, tag),
        "key": sql.Identifier(table.key.name),
        "column": sql.Identifier(table.vectors.name),
        "schema": sql.Identifier(table.connection.extension),
    }


def _trigger(table: PgTable, name: str, text: LiteralString, /, **names: sql.Composable) -> None:
    table.connection.run(text, **names, name=name)
    # also for sessions with session_replication_role = replica
    table.connection.run("ALTER TABLE {} ENABLE ALWAYS TRIGGER {}", table.identifier, name)


def differing_texts(table: PgTable, one: str, other: str) -> list[sql.Composable]:
    """Return conditions of two rows, one of which holds where their texts differ."""
    differ = sql.SQL("{}::text IS DISTINCT FROM {}::text")
    return [
        differ.format(sql.Identifier(one, each), sql.Identifier(other, each))
        for each in table.texts
    ]


def stop_capture(table: PgTable) -> None:
    for name in (*TRIGGERS, SIZE_TRIGGER):
        table.connection.run("DROP TRIGGER IF EXISTS {} ON {}", name, table.identifier)


#: the size of a cast of the vectors, in the expression of an index
_SIZE = re.compile(r"(::(?:\w+\.)?(?:vector|halfvec|bit))\(\d+\)")


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
        tail = re.sub(r"\bhalfvec_(\w+_ops)\b", r"vector_\1", _SIZE.sub(r"\1", self.tail))
        content = repr((self.name, tail, self.unique, self.constraint))
        digest = hashlib.sha256(content.encode()).hexdigest()[:16]
        return name_of(tag, f"index_{digest}")


def _indexes(table: PgTable) -> list[_Index]:
    found = []
    rows = table.connection.execute(_INDEXES, [table.oid]).fetchall()
    for name, text, beginning, *rest in rows:
        if text is None:
            continue  # a client dropped the index while the query ran
        if not text.startswith(beginning):
            raise StoreUnsupported(
                f"The index {name!r} cannot be copied. Drop it for the migration."
            )
        found.append(_Index(name, text.removeprefix(beginning), *rest))
    return found


def copy_indexes(layout: PgLayout, make_room: Callable[[], None]) -> None:
    """Build what the other table lacks of the indexes that clients see, and drop other ones.

    make_room  deletes rows of the other table that a unique index may forbid
    """
    connection, back, tag = layout.connection, layout.other, layout.state.tag
    present = {each.name for each in _indexes(back)}
    for each in _indexes(layout.seen):
        name = each.hidden(tag)
        if name in present:
            present.remove(name)
            continue
        with connection.transaction():
            try:
                with connection.transaction():
                    _build(each, back, tag)
            except psycopg.errors.UniqueViolation:
                make_room()
                _build(each, back, tag)
    for name in present:
        connection.run("ALTER TABLE {} DROP CONSTRAINT IF EXISTS {}", back.identifier, name)
        connection.run("DROP INDEX IF EXISTS {}", sql.Identifier(back.schema, name))


def _build(index: _Index, back: PgTable, tag: str) -> None:
    run, table, name = back.connection.run, back.identifier, sql.Identifier(index.hidden(tag))
    unique, tail = sql.SQL("UNIQUE" if index.unique else ""), index.tail
    if back.vectors.name in index.columns:
        tail = re.sub(r"\b(?:vector|halfvec)_(\w+_ops)\b", back.vectors.type_name + r"_\1", tail)
    elif not index.plain:  # of an expression
        tail = _SIZE.sub(rf"\1({back.dim})", tail)
    run("CREATE {} INDEX {} ON {} USING {}", unique, name, table, sql.SQL(tail))
    if index.constraint is not None:
        constraint = sql.SQL(index.constraint % name.as_string())
        run("ALTER TABLE {} ADD CONSTRAINT {} {}", table, name, constraint)


def has_same_indexes(layout: PgLayout) -> bool:
    """Return whether the other table has a copy of each index that clients see, and no other."""
    present = {each.name for each in _indexes(layout.other)}
    return present == {each.hidden(layout.state.tag) for each in _indexes(layout.seen)}


def exchange_index_names(tag: str, front: PgTable) -> None:
    """Exchange the names of the indexes of both tables. front: the one whose names are hidden."""
    between = name_of(tag, "between")
    for each in _indexes(front):
        hidden = each.hidden(tag)
        for old, new in ((each.name, between), (hidden, each.name), (between, hidden)):
            front.connection.run(
                "ALTER INDEX {} RENAME TO {}", sql.Identifier(front.schema, old), new
            )
