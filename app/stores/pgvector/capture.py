"""Captures the writes of clients: a trigger puts the keys of changed rows into a queue table."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from app.errors import StoreChanged
from app.stores.base import Changes, StoreId
from app.stores.pgvector import reading
from app.stores.pgvector.connections import KeyKind, StoreConnection, key_type
from app.stores.pgvector.layout import PgState, PgVectors, name_of

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
    connection: StoreConnection, state: PgState, schema: str, key: str, kind: KeyKind, owner: str
) -> None:
    """Create the queue and the function of the triggers, which runs as the owner of the table."""
    queue = sql.Identifier(schema, state.queue)
    function = sql.Identifier(schema, name_of(state.tag, "capture"))
    connection.run(
        "CREATE TABLE {} (seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key {}, "
        "rows_only boolean NOT NULL DEFAULT false)",
        queue,
        key_type(kind),
    )
    connection.run(_CAPTURE, function=function, queue=queue, key=key)
    connection.run("ALTER TABLE {} OWNER TO {}", queue, owner)
    connection.run("ALTER FUNCTION {}() OWNER TO {}", function, owner)


def drop_queue(connection: StoreConnection, state: PgState, schema: str) -> None:
    """Drop the queue and the function, and with it the triggers."""
    for statement in (
        "DROP TABLE IF EXISTS {queue}",
        "DROP FUNCTION IF EXISTS {function}() CASCADE",
    ):
        connection.run(
            statement,
            queue=sql.Identifier(schema, state.queue),
            function=sql.Identifier(schema, name_of(state.tag, "capture")),
        )


def start_capture(connection: StoreConnection, tag: str, vectors: PgVectors) -> None:
    """Create the triggers. Waits for transactions that write to the table."""
    table = vectors.relation.identifier
    changed = sql.SQL("OLD.{0} IS DISTINCT FROM NEW.{0} OR OLD.{1} IS DISTINCT FROM NEW.{1}")
    values = {
        "table": table,
        "function": sql.Identifier(vectors.relation.schema, name_of(tag, "capture")),
        "changed": changed.format(sql.Identifier(vectors.key), sql.Identifier(vectors.column)),
    }
    for name, definition in _TRIGGERS.items():
        create = sql.SQL("CREATE TRIGGER {name} " + definition)
        connection.execute(create.format(name=sql.Identifier(name), **values))
        # also for a subscriber of logical replication
        connection.run("ALTER TABLE {} ENABLE ALWAYS TRIGGER {}", table, name)


def stop_capture(connection: StoreConnection, vectors: PgVectors) -> None:
    for name in _TRIGGERS:
        connection.run("DROP TRIGGER IF EXISTS {} ON {}", name, vectors.relation.identifier)


def require_capture(connection: StoreConnection, vectors: PgVectors) -> None:
    """Raises StoreChanged if a trigger is missing or disabled: writes of clients would be lost."""
    row = connection.execute(
        "SELECT count(*) FROM pg_trigger WHERE tgrelid = %s AND tgenabled = 'A' "
        "AND tgname = ANY(%s)",
        [vectors.relation.oid, list(_TRIGGERS)],
    ).fetchone()
    if row is None or row[0] != len(_TRIGGERS):
        raise StoreChanged(
            f"A trigger of the reindexing on {vectors.relation.name!r} is missing or disabled, so "
            "writes of clients may be lost. Abandon the reindexing, and plan a new one."
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
    connection.run(
        "DELETE FROM {} WHERE seq = ANY(%s)",
        sql.Identifier(schema, state.queue),
        params=[list(numbers)],
    )
