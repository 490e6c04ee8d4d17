"""Follows the writes of clients: triggers queue the keys of changed rows, which are copied.

Each row is copied whole, with the vector that it has in the other table. Rows of the other table
without an entry in the queue are right at each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, LiteralString

import numpy as np
import psycopg
from pgvector import HalfVector, Vector
from psycopg import sql

from app.errors import DimensionMismatch, NonFinite, StoreChanged, StoreUnavailable
from app.stores.pgvector.connections import StoreConnection
from app.stores.pgvector.rows import fetch, stored_keys, zero_vector
from app.stores.pgvector.tables import PgLayout, PgTable, make_private, name_of
from app.stores.port import Changes, StoreId, StoreVectors

#: how often rows are written again when a unique value has moved to another row meanwhile
WRITE_ATTEMPTS = 5

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


def create_queue(connection: StoreConnection, layout: PgLayout) -> None:
    """Create the queue, and the function of the triggers, both of the table's owner.

    vector  what a row had when `delete_waiting` deleted it
    """
    seen, function = layout.seen, _function(layout.seen, layout.state.tag)
    connection.run(
        "CREATE TABLE {} (seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key {}, "
        "rows_only boolean NOT NULL DEFAULT false, vector real[])",
        layout.queue,
        sql.SQL(seen.key_type),
    )
    connection.run(_CAPTURE, queue=layout.queue, function=function, key=seen.key.name)
    make_private(connection, "TABLE", layout.queue, seen.owner)
    # Whoever may execute the function can put keys into the queue, by a trigger on another table.
    make_private(connection, "FUNCTION", function, seen.owner)


def _function(table: PgTable, tag: str) -> sql.Identifier:
    return sql.Identifier(table.schema, name_of(tag, "capture"))


def start_capture(connection: StoreConnection, table: PgTable, tag: str) -> None:
    """Create the triggers. Waits for transactions that write to the table."""
    names = {
        "table": table.identifier,
        "function": _function(table, tag),
        "key": sql.Identifier(table.key.name),
        "column": sql.Identifier(table.vectors.name),
        "schema": sql.Identifier(connection.extension),
    }
    changed = sql.SQL(_CHANGED).format(**names)
    for name, definition in _TRIGGERS.items():
        trigger = sql.Identifier(name)
        connection.run(definition, **names, name=trigger, changed=changed)
        # also for sessions with session_replication_role = replica
        connection.run("ALTER TABLE {table} ENABLE ALWAYS TRIGGER {name}", **names, name=trigger)


def stop_capture(connection: StoreConnection, table: PgTable) -> None:
    for name in _TRIGGERS:
        connection.run("DROP TRIGGER IF EXISTS {} ON {}", name, table.identifier)


def require_capture(connection: StoreConnection, layout: PgLayout) -> None:
    """Raises StoreChanged if a trigger is missing or disabled: writes of clients would be lost."""
    rows = connection.execute(
        "SELECT tgname FROM pg_trigger WHERE tgrelid = %s AND tgenabled = 'A'", [layout.seen.oid]
    ).fetchall()
    missing = ", ".join(each for each in _TRIGGERS if (each,) not in rows)
    if not missing:
        return
    advice = "Writes of clients may be lost. `abandon` the migration, and plan a new one."
    if layout.state.is_cut_over:
        advice = (
            "Writes of clients may be lost for a rollback. `finish` the migration. Or, if you "
            "only disabled triggers, enable them by ALTER TABLE ... ENABLE ALWAYS TRIGGER, and "
            "call `verify`: it copies again what differs in more than the vector."
        )
    raise StoreChanged(
        f"Triggers of the migration on {layout.seen.name!r} are missing or disabled: {missing}. "
        f"{advice}"
    )


class Follower:
    """Copies rows that clients see to the other table, in the transaction of a connection."""

    def __init__(self, connection: StoreConnection, layout: PgLayout) -> None:
        self.connection = connection
        self.layout = layout
        other = layout.other
        # the vector of rows without one: NULL, or zeros where the column must not be NULL
        empty = zero_vector(connection, other) if other.vectors.not_null else sql.SQL("NULL")
        self._names: dict[str, sql.Composable] = {
            "other": other.identifier,
            "seen": layout.seen.identifier,
            "queue": layout.queue,
            "key": sql.Identifier(other.key.name),
            "column": sql.Identifier(other.vectors.name),
            "type": sql.SQL(other.key_type),
            "stored": sql.Identifier(connection.extension, other.vectors.type_name),
            "incoming": sql.Identifier("pg_temp", "anchorage_incoming"),
            "empty": empty,
        }

    def _run(
        self, template: LiteralString, *params: Any, **names: sql.Composable
    ) -> psycopg.Cursor[Any]:
        return self.connection.run(template, params=params or None, **self._names, **names)

    def read_changes(self, limit: int) -> Changes:
        """Return captured keys with their present vectors. The token is the queue's own numbers.

        Numbers are not taken up to the largest: a transaction may commit a smaller one later.
        """
        rows = self._run("SELECT seq, key::text FROM {queue} ORDER BY seq LIMIT %s", limit)
        found = rows.fetchall()
        is_number = self.layout.seen.key_type == "bigint"
        texts = dict.fromkeys(key for _, key in found if key is not None)
        ids: list[StoreId] = [int(key) if is_number else key for key in texts]
        page = fetch(self.connection, self.layout.seen, ids)
        return Changes(
            page.ids,
            page.vectors,
            [each for each in ids if each not in set(page.ids)],
            token=[seq for seq, _ in found],
            truncated=any(key is None for _, key in found),
            cut_over=self.layout.state.is_cut_over,
        )

    def write(self, ids: Sequence[StoreId], vectors: StoreVectors, *, replace: bool) -> None:
        """Copy the rows of these ids that exist, with new vectors."""
        self._load(ids, vectors)
        tail: LiteralString = "JOIN {incoming} i ON i.key = r.{key}"
        self._write_rows("i.vector", tail, replace=replace)

    def apply(self, changes: Changes, vectors: StoreVectors) -> bool:
        """Repeat changes in the other table. Returns False, and writes nothing, if some do not
        wait.

        A row without a vector that can be translated gets an empty one, and stays visible.
        """
        if not changes.token:
            return True
        # An entry that another process has applied may be older than what that process wrote.
        waiting = self._run(
            "SELECT FROM {queue} WHERE seq = ANY(%s) ORDER BY seq FOR UPDATE", changes.token
        )
        if waiting.rowcount < len(changes.token):
            return False
        self._load(changes.ids, vectors)
        keys = stored_keys([*changes.ids, *changes.deleted], self.layout.other)
        self._run(
            "DELETE FROM {other} o WHERE (%s OR o.{key} = ANY(%s::{type}[])) "
            "AND NOT EXISTS (SELECT FROM {seen} s WHERE s.{key} = o.{key})",
            changes.truncated,
            keys,
        )
        vector: LiteralString = "coalesce(i.vector, {empty})"
        values = [keys]
        if self.layout.state.phase != "prepared":
            # A change of other columns must not replace a vector of a client by a translation.
            vector = (
                "coalesce(CASE WHEN (SELECT bool_and(q.rows_only) FROM {queue} q WHERE "
                "q.key = r.{key} AND q.seq = ANY(%s)) THEN coalesce("
                "(SELECT o.{column} FROM {other} o WHERE o.{key} = r.{key}), "
                "(SELECT q.vector::{stored} FROM {queue} q WHERE q.key = r.{key} "
                "AND q.vector IS NOT NULL ORDER BY q.seq LIMIT 1)) END, i.vector, {empty})"
            )
            values = [changes.token, keys]
        tail: LiteralString = (
            "LEFT JOIN {incoming} i ON i.key = r.{key} WHERE r.{key} = ANY(%s::{type}[])"
        )
        self._write_rows(vector, tail, *values, replace=True)
        # From here on, the other table has the vector of each row that was deleted to write
        # another.
        self._run(
            "UPDATE {queue} SET vector = NULL WHERE key = ANY(%s::{type}[]) AND vector IS NOT NULL",
            keys,
        )
        self._run("DELETE FROM {queue} WHERE seq = ANY(%s)", changes.token)
        return True

    def copy_missing(self) -> None:
        """Copy rows that the other table lacks, with empty vectors. `apply` copies what waits."""
        tail: LiteralString = (
            "WHERE NOT EXISTS (SELECT FROM {other} o WHERE o.{key} = r.{key}) "
            "AND NOT EXISTS (SELECT FROM {queue} q WHERE q.key = r.{key})"
        )
        self._write_rows("{empty}", tail, replace=False)

    def queue_different(self) -> int | None:
        """Queue each row of the other table that differs, although no change of it waits.

        Returns the number of rows; None while a TRUNCATE waits, before which none can be compared.
        """
        seen = self.layout.seen
        row_s, row_o = (
            sql.SQL("ROW({})::text").format(
                sql.SQL(", ").join(
                    sql.Identifier(e, name) for name in (seen.key.name, *seen.payload)
                )
            )
            for e in ("s", "o")
        )
        if self._run("SELECT FROM {queue} WHERE key IS NULL LIMIT 1").rowcount:
            return None
        return self._run(
            "INSERT INTO {queue} (key, rows_only) SELECT o.{key}, true FROM {other} o "
            "LEFT JOIN {seen} s ON s.{key} = o.{key} WHERE {row_o} IS DISTINCT FROM {row_s} "
            "AND o.{key} NOT IN (SELECT key FROM {queue} WHERE key IS NOT NULL)",
            row_s=row_s,
            row_o=row_o,
        ).rowcount

    def delete_waiting(self) -> None:
        """Delete rows of the other table with an entry in the queue: `apply` brings them back.

        The entry keeps the vector of its row. The entry of a TRUNCATE has no key: it stands for
        all rows that clients no longer see.
        """
        self._run(
            "DELETE FROM {other} o WHERE EXISTS (SELECT FROM {queue} WHERE key IS NULL) "
            "AND NOT EXISTS (SELECT FROM {seen} s WHERE s.{key} = o.{key})"
        )
        self._run(
            "WITH deleted AS (DELETE FROM {other} o USING {queue} q WHERE q.key = o.{key} "
            "RETURNING o.{key} AS key, o.{column} AS vector) "
            "UPDATE {queue} q SET vector = d.vector::real[] FROM deleted d WHERE q.key = d.key"
        )

    def _load(self, ids: Sequence[StoreId], vectors: StoreVectors) -> None:
        """Load vectors of the other table into a temporary one, by key."""
        target = self.layout.other
        if len(ids) and vectors.shape != (len(ids), target.dim or vectors.shape[1]):
            raise DimensionMismatch(
                f"Vectors of shape {vectors.shape} were written for {len(ids)} rows of "
                f"{target.dim} dimensions. Translate them to the target encoder."
            )
        type_name = target.vectors.type_name
        is_half = type_name == "halfvec"
        with np.errstate(over="ignore"):
            stored = vectors.astype(np.float16 if is_half else np.float32)
        if not np.isfinite(stored).all():
            raise NonFinite(
                f"A new vector contains a number that is not finite, or too large for {type_name}."
            )
        # PostgreSQL takes the new table for a large one: its join would read the whole table.
        self._run("SET LOCAL enable_hashjoin = off")
        self._run("SET LOCAL enable_mergejoin = off")
        self._run(
            "CREATE TEMPORARY TABLE anchorage_incoming (key {type}, vector {stored}) ON COMMIT DROP"
        )
        load = sql.SQL("COPY {incoming} FROM STDIN BINARY").format(**self._names)
        with self.connection.cursor().copy(load) as copy:
            copy.set_types([target.key_type, type_name])
            for key, row in zip(stored_keys(ids, target), stored, strict=True):
                copy.write_row((key, HalfVector(row) if is_half else Vector(row)))

    def _write_rows(
        self, vector: LiteralString, tail: LiteralString, *values: Any, replace: bool
    ) -> None:
        """Copy rows `r` that clients see to the other table, each with `vector`."""
        known = set(self.layout.seen.payload) | {self.layout.seen.key.name}
        columns = [
            sql.Identifier(each.name)
            for each in self.layout.other.columns
            if each.name in known and not each.generated
        ]
        written = [*columns, self._names["column"]]
        updates = [sql.SQL("{0} = EXCLUDED.{0}").format(each) for each in written]
        names = {
            "vector": sql.SQL(vector).format(**self._names),
            "tail": sql.SQL(tail).format(**self._names),
            "written": sql.SQL(", ").join(written),
            "rows": sql.SQL(", ").join(sql.SQL("r.{}").format(each) for each in columns),
            "conflict": sql.SQL("UPDATE SET {}").format(sql.SQL(", ").join(updates))
            if replace
            else sql.SQL("NOTHING"),
        }
        for _ in range(WRITE_ATTEMPTS):
            try:
                with self.connection.transaction():
                    self._run(
                        "INSERT INTO {other} ({written}) SELECT {rows}, {vector} FROM {seen} r "
                        "{tail} ON CONFLICT ({key}) DO {conflict}",
                        *values,
                        **names,
                    )
                    self._run("SET CONSTRAINTS ALL IMMEDIATE")  # not first at the commit
                return
            except psycopg.errors.UniqueViolation:
                self.delete_waiting()
        raise StoreUnavailable(
            "Clients move unique values between rows faster than they can be copied. Try again."
        )
