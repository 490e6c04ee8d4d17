"""Captures the writes of clients: a trigger puts the keys of changed rows into a queue table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import LiteralString

from psycopg import sql

from app.errors import StoreChanged
from app.stores.pgvector import reading
from app.stores.pgvector.attachments import revoke_others
from app.stores.pgvector.connections import StoreConnection
from app.stores.pgvector.layout import PgLayout, PgState, PgVectors, name_of
from app.stores.pgvector.values import key_type
from app.stores.port import Changes, StoreId

_CAPTURE = """
CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $anchorage$
BEGIN
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

_TRIGGERS: dict[str, LiteralString] = {
    "anchorage_capture": "CREATE TRIGGER {name} AFTER INSERT OR DELETE ON {table} FOR EACH ROW "
    "EXECUTE FUNCTION {function}()",
    "anchorage_capture_update": "CREATE TRIGGER {name} AFTER UPDATE ON {table} FOR EACH ROW "
    "WHEN ({changed}) EXECUTE FUNCTION {function}()",
    "anchorage_capture_rows": "CREATE TRIGGER {name} AFTER UPDATE ON {table} FOR EACH ROW "
    "WHEN (NOT ({changed})) EXECUTE FUNCTION {function}('rows')",
    "anchorage_capture_truncate": "CREATE TRIGGER {name} AFTER TRUNCATE ON {table} "
    "FOR EACH STATEMENT EXECUTE FUNCTION {function}()",
}


def create_queue(connection: StoreConnection, state: PgState, table: PgVectors) -> None:
    """Create the queue, the marks, and the function of the triggers, all of the table's owner.

    vector of the queue: what a row had when `delete_waiting` deleted it
    """
    schema, owner = table.relation.schema, table.relation.owner
    queue, marks = sql.Identifier(schema, state.queue), sql.Identifier(schema, state.marks)
    function = sql.Identifier(schema, name_of(state.tag, "capture"))
    names = {"queue": queue, "function": function, "key": sql.Identifier(table.key)}
    connection.run(
        "CREATE TABLE {} (seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key {}, "
        "rows_only boolean NOT NULL DEFAULT false, vector real[])",
        queue,
        key_type(table.kind),
    )
    connection.run("CREATE TABLE {} (key {} PRIMARY KEY)", marks, key_type(table.kind))
    connection.run(_CAPTURE, **names)
    # Whoever may execute the function can put keys into the queue, by a trigger on another table.
    for kind, each in (("TABLE", queue), ("TABLE", marks), ("FUNCTION", function)):
        connection.run("ALTER {} {} OWNER TO {}", sql.SQL(kind), each, owner)
        revoke_others(connection, each, kind)


def start_capture(connection: StoreConnection, tag: str, vectors: PgVectors) -> None:
    """Create the triggers. Waits for transactions that write to the table."""
    names = {
        "table": vectors.relation.identifier,
        "function": sql.Identifier(vectors.relation.schema, name_of(tag, "capture")),
        "key": sql.Identifier(vectors.key),
        "column": sql.Identifier(vectors.column),
        "schema": sql.Identifier(connection.extension),
    }
    changed = sql.SQL(_CHANGED).format(**names)
    for name, definition in _TRIGGERS.items():
        trigger = sql.Identifier(name)
        connection.run(definition, **names, name=trigger, changed=changed)
        # also for sessions with session_replication_role = replica
        connection.run("ALTER TABLE {table} ENABLE ALWAYS TRIGGER {name}", **names, name=trigger)


def stop_capture(connection: StoreConnection, vectors: PgVectors) -> None:
    for name in _TRIGGERS:
        connection.run("DROP TRIGGER IF EXISTS {} ON {}", name, vectors.relation.identifier)


def require_capture(connection: StoreConnection, layout: PgLayout, state: PgState) -> None:
    """Raises StoreChanged if a trigger is missing or disabled: writes of clients would be lost."""
    rows = connection.execute(
        "SELECT tgname FROM pg_trigger WHERE tgrelid = %s AND tgenabled = 'A'", [layout.table.oid]
    ).fetchall()
    missing = ", ".join(each for each in _TRIGGERS if (each,) not in rows)
    if not missing:
        return
    advice = "Writes of clients may be lost. `abandon` the migration, and plan a new one."
    if state.is_cut_over:
        advice = (
            "Writes of clients may be lost for a rollback. `finish` the migration. Or, if you "
            "only disabled triggers, enable them by ALTER TABLE ... ENABLE ALWAYS TRIGGER, and "
            "call `verify`: it copies again what differs in more than the vector."
        )
    raise StoreChanged(
        f"Triggers of the migration on {layout.table.name!r} are missing or disabled: {missing}. "
        f"{advice}"
    )


def read_changes(
    connection: StoreConnection, state: PgState, source: PgVectors, limit: int
) -> Changes:
    """Return captured keys with their present vectors. The token is the queue's own numbers.

    Numbers are not taken up to the largest: a transaction may commit a smaller one later.
    """
    queue = sql.Identifier(source.relation.schema, state.queue)
    rows = connection.run(
        "SELECT seq, key::text FROM {} ORDER BY seq LIMIT %s", queue, params=[limit]
    ).fetchall()
    texts = dict.fromkeys(key for _, key in rows if key is not None)
    ids: list[StoreId] = [int(key) if source.kind == "int" else key for key in texts]
    page = reading.fetch(connection, source, ids)
    present = set(page.ids)
    return Changes(
        page.ids,
        page.vectors,
        [each for each in ids if each not in present],
        token=[seq for seq, _ in rows],
        truncated=any(key is None for _, key in rows),
        cut_over=state.is_cut_over,
    )


def claim(connection: StoreConnection, queue: sql.Composable, numbers: Sequence[int]) -> bool:
    """Lock entries of the queue. Returns whether all still wait: their vectors are then current.

    An entry that another process has applied may be older than what that process wrote.
    """
    locked = connection.run(
        "SELECT seq FROM {} WHERE seq = ANY(%s) ORDER BY seq FOR UPDATE", queue, params=[numbers]
    )
    return locked.rowcount == len(numbers)


def acknowledge(
    connection: StoreConnection, state: PgState, schema: str, numbers: Sequence[int]
) -> None:
    """Delete entries of the queue, and mark the rows whose old vector is now a translated one."""
    queue, marks = sql.Identifier(schema, state.queue), sql.Identifier(schema, state.marks)
    connection.run(
        "INSERT INTO {marks} SELECT DISTINCT key FROM {queue} WHERE seq = ANY(%s) "
        "AND NOT rows_only AND key IS NOT NULL ON CONFLICT DO NOTHING"
        if state.is_cut_over
        else "DELETE FROM {marks} WHERE key IN "
        "(SELECT key FROM {queue} WHERE seq = ANY(%s) AND NOT rows_only)",
        params=[numbers],
        queue=queue,
        marks=marks,
    )
    connection.run("DELETE FROM {} WHERE seq = ANY(%s)", queue, params=[numbers])
