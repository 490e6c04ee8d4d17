"""Captures the writes of clients: a trigger puts the keys of changed rows into a queue table."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from app.errors import StoreChanged
from app.stores.pgvector import reading
from app.stores.pgvector.connections import KeyKind, StoreConnection, key_type
from app.stores.pgvector.facts import revoke_others
from app.stores.pgvector.layout import PgState, PgVectors, name_of
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

_TRIGGERS = {
    "anchorage_capture": "AFTER INSERT OR DELETE ON {table} FOR EACH ROW "
    "EXECUTE FUNCTION {function}()",
    "anchorage_capture_update": "AFTER UPDATE ON {table} FOR EACH ROW WHEN ({changed}) "
    "EXECUTE FUNCTION {function}()",
    "anchorage_capture_rows": "AFTER UPDATE ON {table} FOR EACH ROW WHEN (NOT ({changed})) "
    "EXECUTE FUNCTION {function}('rows')",
    "anchorage_capture_truncate": "AFTER TRUNCATE ON {table} FOR EACH STATEMENT "
    "EXECUTE FUNCTION {function}()",
}


def create_queue(
    connection: StoreConnection, state: PgState, schema: str, kind: KeyKind, owner: str
) -> None:
    """Create the queue, the marks, and the function of the triggers, all of the table's owner.

    vector of the queue: what a row had when `delete_waiting` deleted it
    """
    queue, marks = sql.Identifier(schema, state.queue), sql.Identifier(schema, state.marks)
    function = sql.Identifier(schema, name_of(state.tag, "capture"))
    names: dict[str, sql.Composable] = {
        "queue": queue,
        "marks": marks,
        "function": function,
        "key": sql.Identifier(state.key),
        "type": key_type(kind),
        "owner": sql.Identifier(owner),
    }
    for statement in (
        "CREATE TABLE {queue} (seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key {type}, "
        "rows_only boolean NOT NULL DEFAULT false, vector real[])",
        "CREATE TABLE {marks} (key {type} PRIMARY KEY)",
        _CAPTURE,
        "ALTER TABLE {queue} OWNER TO {owner}",
        "ALTER TABLE {marks} OWNER TO {owner}",
        "ALTER FUNCTION {function}() OWNER TO {owner}",
    ):
        connection.execute(sql.SQL(statement).format(**names))
    for table in (queue, marks):
        revoke_others(connection, table)
    # Whoever may execute it can put keys into the queue, by a trigger on another table.
    revoke_others(connection, function, "FUNCTION")


def start_capture(connection: StoreConnection, tag: str, vectors: PgVectors) -> None:
    """Create the triggers. Waits for transactions that write to the table."""
    table = vectors.relation.identifier
    # A dump shows IS DISTINCT FROM without the schema of its operator, and cannot be restored.
    changed = sql.SQL(
        "OLD.{key} IS DISTINCT FROM NEW.{key} OR (OLD.{column} OPERATOR({schema}.=) NEW.{column} "
        "OR OLD.{column} IS NULL AND NEW.{column} IS NULL) IS NOT TRUE"
    ).format(
        key=sql.Identifier(vectors.key),
        column=sql.Identifier(vectors.column),
        schema=sql.Identifier(connection.extension),
    )
    values = {
        "table": table,
        "function": sql.Identifier(vectors.relation.schema, name_of(tag, "capture")),
        "changed": changed,
    }
    for name, definition in _TRIGGERS.items():
        create = sql.SQL("CREATE TRIGGER {name} " + definition)
        connection.execute(create.format(name=sql.Identifier(name), **values))
        # also for sessions with session_replication_role = replica
        connection.run("ALTER TABLE {} ENABLE ALWAYS TRIGGER {}", table, name)


def stop_capture(connection: StoreConnection, vectors: PgVectors) -> None:
    for name in _TRIGGERS:
        connection.run("DROP TRIGGER IF EXISTS {} ON {}", name, vectors.relation.identifier)


def require_capture(connection: StoreConnection, vectors: PgVectors, *, is_cut_over: bool) -> None:
    """Raises StoreChanged if a trigger is missing or disabled: writes of clients would be lost."""
    rows = connection.execute(
        "SELECT tgname FROM pg_trigger WHERE tgrelid = %s AND tgenabled = 'A'",
        [vectors.relation.oid],
    ).fetchall()
    missing = ", ".join(each for each in _TRIGGERS if (each,) not in rows)
    if missing and is_cut_over:
        raise StoreChanged(
            f"Triggers of the migration on {vectors.relation.name!r} are missing or disabled: "
            f"{missing}. Writes of clients may be lost for a rollback. `finish` the migration. "
            "Or, if you only disabled triggers, enable them by ALTER TABLE ... ENABLE ALWAYS "
            "TRIGGER, and call `verify`: it copies again what differs in more than the vector."
        )
    if missing:
        raise StoreChanged(
            f"Triggers of the migration on {vectors.relation.name!r} are missing or disabled: "
            f"{missing}. Writes of clients may be lost. `abandon` the migration, and plan a new "
            "one."
        )


def read_changes(
    connection: StoreConnection,
    state: PgState,
    source: PgVectors,
    kind: KeyKind,
    limit: int,
) -> Changes:
    """Return captured keys with their present vectors. The token is the queue's own numbers.

    Numbers are not taken up to the largest: a transaction may commit a smaller one later.
    """
    queue = sql.Identifier(source.relation.schema, state.queue)
    rows = connection.run(
        "SELECT seq, key::text FROM {} ORDER BY seq LIMIT %s", queue, params=[limit]
    ).fetchall()
    texts = dict.fromkeys(key for _, key in rows if key is not None)
    ids: list[StoreId] = [int(key) if kind == "int" else key for key in texts]
    page = reading.fetch(connection, source, kind, ids)
    present = set(page.ids)
    return Changes(
        page.ids,
        page.vectors,
        [each for each in ids if each not in present],
        token=[seq for seq, _ in rows],
        truncated=any(key is None for _, key in rows),
        cut_over=state.is_cut_over,
    )


def claim(connection: StoreConnection, state: PgState, schema: str, numbers: Sequence[int]) -> bool:
    """Lock entries of the queue. Returns whether all still wait: their vectors are then current.

    An entry that another process has applied may be older than what that process wrote.
    """
    rows = connection.run(
        "SELECT seq FROM {} WHERE seq = ANY(%s) ORDER BY seq FOR UPDATE",
        sql.Identifier(schema, state.queue),
        params=[list(numbers)],
    ).fetchall()
    return len(rows) == len(numbers)


def acknowledge(
    connection: StoreConnection, state: PgState, schema: str, numbers: Sequence[int]
) -> None:
    """Delete entries of the queue, and mark the rows whose old vector is now a translated one."""
    names = {
        "marks": sql.Identifier(schema, state.marks),
        "queue": sql.Identifier(schema, state.queue),
    }
    connection.run(
        "INSERT INTO {marks} SELECT DISTINCT key FROM {queue} WHERE seq = ANY(%s) "
        "AND NOT rows_only AND key IS NOT NULL ON CONFLICT DO NOTHING"
        if state.is_cut_over
        else "DELETE FROM {marks} WHERE key IN "
        "(SELECT key FROM {queue} WHERE seq = ANY(%s) AND NOT rows_only)",
        params=[list(numbers)],
        **names,
    )
    connection.run(
        "DELETE FROM {} WHERE seq = ANY(%s)",
        sql.Identifier(schema, state.queue),
        params=[list(numbers)],
    )
