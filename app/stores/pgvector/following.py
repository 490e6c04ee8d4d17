"""What a run does: it copies rows into the second table, with new vectors, and follows clients.

Triggers queue the keys of rows that clients change. Each row is copied whole, with the vector that
it has in the other table. Rows of the other table without an entry in the queue are right at each
time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, LiteralString

import numpy as np
import psycopg
from pgvector import HalfVector, Vector
from psycopg import sql

from app.errors import (
    DimensionMismatch,
    NonFinite,
    StoreChanged,
    StoreUnavailable,
    WrongState,
)
from app.stores import port as base
from app.stores.pgvector.checks import (
    another_migration,
    new_type,
    require_capture,
    require_no_obstacles,
    require_same,
    require_same_tables,
)
from app.stores.pgvector.connections import PgConnections, StoreConnection
from app.stores.pgvector.locks import run_locked
from app.stores.pgvector.second_table import (
    copy_indexes,
    create_queue,
    create_second,
    differing_texts,
    start_capture,
)
from app.stores.pgvector.tables import (
    PgLayout,
    PgState,
    PgTable,
    load_layout,
    name_of,
    states_of,
    traces_of,
)
from app.stores.port import Changes, Page, StoreId, StoreVectors

#: captured writes of one transaction, which locks their rows
CAPTURED_ROWS = 100

#: how often rows are written again when a unique value has moved to another row meanwhile
WRITE_ATTEMPTS = 5


class Follower:
    """Copies rows that clients see to the other table, in the transaction of its connection."""

    def __init__(self, layout: PgLayout) -> None:
        self.layout = layout
        other = layout.other
        # the vector of rows without one: NULL, or zeros where the column must not be NULL
        empty = other.zero if other.vectors.not_null else sql.SQL("NULL")
        names: dict[str, str | sql.Composable] = {
            "other": other.identifier,
            "seen": layout.seen.rows,
            "table": layout.seen.identifier,
            "queue": layout.queue,
            "key": other.key.name,
            "column": other.vectors.name,
            "type": sql.SQL(other.key_type),
            "stored": other.vector_type,
            "empty": empty,
        }
        self._names = names | {
            "incoming": sql.SQL("unnest(%(ids)s::{}[], %(vectors)b::{}[]) i(key, vector)").format(
                names["type"], names["stored"]
            )
        }

    def _run(
        self, template: LiteralString, params: Any = None, **names: sql.Composable
    ) -> psycopg.Cursor[Any]:
        return self.layout.connection.run(template, params=params, **self._names, **names)

    def read_changes(self, limit: int) -> Changes:
        """Return captured keys with their present vectors. The token is the queue's own numbers.

        Numbers are not taken up to the largest: a transaction may commit a smaller one later.
        """
        query: LiteralString = "SELECT seq, key::text, rows_only FROM {queue} ORDER BY seq LIMIT %s"
        found = self._run(query, [limit]).fetchall()
        read = int if self.layout.seen.key_type == "bigint" else str
        ids: dict[StoreId, bool] = {}
        for _, key, rows_only in found:
            if key is not None:
                ids[read(key)] = rows_only and ids.get(read(key), True)
        page = self.layout.seen.fetch(list(ids))
        return Changes(
            page.ids,
            page.vectors,
            [each for each in ids if each not in set(page.ids)],
            [each for each in page.ids if ids[each]],
            token=[seq for seq, *_ in found],
            truncated=any(key is None for _, key, _ in found),
            cut_over=self.layout.state.is_cut_over,
            writes=len(found),
        )

    def write(self, ids: Sequence[StoreId], vectors: StoreVectors, *, replace: bool) -> None:
        """Copy the rows of these ids that exist, with new vectors."""
        tail: LiteralString = "JOIN {incoming} ON i.key = r.{key}"
        self._copy("i.vector", tail, self._parameters(ids, vectors), replace=replace)

    def rewrite(self, seen: Page, vectors: StoreVectors) -> Sequence[StoreId]:
        """Replace vectors that clients see, where they are still those of `seen`."""
        table = self.layout.seen
        values = self._parameters(seen.ids, vectors, table)
        values["old"] = self._parameters(seen.ids, seen.vectors, table)["vectors"]
        written = self._run(
            "WITH kept AS (SELECT r.{key} AS key, i.vector FROM {seen} r JOIN "
            "unnest(%(ids)s::{type}[], %(vectors)b::{visible}[], %(old)b::{visible}[]) "
            "i(key, vector, old) ON i.key = r.{key} AND r.{column} OPERATOR({schema}.=) i.old "
            "FOR NO KEY UPDATE OF r SKIP LOCKED) UPDATE {table} v SET {column} = k.vector "
            "FROM kept k WHERE k.key = v.{key} RETURNING {chosen}",
            values,
            visible=table.vector_type,
            schema=sql.Identifier(table.connection.extension),
            chosen=table.selected_key,
        ).fetchall()
        # The triggers have captured this. A client's own may have changed other columns, so that
        # `apply` copies the rows, without their vectors.
        self._run("UPDATE {queue} SET rows_only = true WHERE xmin = pg_current_xact_id()::xid")
        return [id for [id] in written]

    def apply(self, changes: Changes, vectors: StoreVectors) -> bool:
        """Repeat changes in the other table. Returns False, and writes nothing, if some do not
        wait.

        A row without a vector that can be translated gets an empty one, and stays visible.
        """
        if not changes.token:
            return True
        # An entry that another process has applied may be older than what that process wrote.
        waiting = self._run(
            "SELECT FROM {queue} WHERE seq = ANY(%s) ORDER BY seq FOR UPDATE", [changes.token]
        )
        if waiting.rowcount < len(changes.token):
            return False
        keys = self.layout.other.stored_keys([*changes.ids, *changes.deleted])
        values = {"keys": keys, "token": changes.token, "all": changes.truncated}
        values |= self._parameters(changes.ids, vectors)
        self._run(
            "DELETE FROM {other} o WHERE (%(all)s OR o.{key} = ANY(%(keys)s::{type}[])) "
            "AND NOT EXISTS (SELECT FROM {seen} s WHERE s.{key} = o.{key})",
            values,
        )
        vector: LiteralString = "coalesce(i.vector, {empty})"
        if self.layout.state.phase != "prepared":
            # A change of other columns must not replace a vector of a client by a translation.
            vector = (
                "coalesce(CASE WHEN (SELECT bool_and(q.rows_only) FROM {queue} q WHERE "
                "q.key = r.{key} AND q.seq = ANY(%(token)s)) THEN coalesce("
                "(SELECT o.{column} FROM {other} o WHERE o.{key} = r.{key}), "
                "(SELECT q.vector::{stored} FROM {queue} q WHERE q.key = r.{key} "
                "AND q.vector IS NOT NULL ORDER BY q.seq LIMIT 1)) END, i.vector, {empty})"
            )
        tail: LiteralString = (
            "LEFT JOIN {incoming} ON i.key = r.{key} WHERE r.{key} = ANY(%(keys)s::{type}[])"
        )
        self._copy(vector, tail, values, replace=True)
        # From here on, the other table has the vector of each row that was deleted to write
        # another.
        self._run(
            "UPDATE {queue} SET vector = NULL WHERE key = ANY(%(keys)s::{type}[]) "
            "AND vector IS NOT NULL",
            values,
        )
        self._run("DELETE FROM {queue} WHERE seq = ANY(%(token)s)", values)
        return True

    def copy_missing(self) -> None:
        """Copy rows that the other table lacks, with empty vectors. `apply` copies what waits."""
        tail: LiteralString = (
            "WHERE NOT EXISTS (SELECT FROM {other} o WHERE o.{key} = r.{key}) "
            "AND NOT EXISTS (SELECT FROM {queue} q WHERE q.key = r.{key})"
        )
        self._copy("{empty}", tail, {}, replace=False)

    def exchange(self) -> None:
        """Exchange the vectors of both tables. Rows without another one get an empty one."""
        empty: sql.Composable = sql.SQL("NULL")
        if self.layout.seen.vectors.not_null:
            empty = self.layout.other.zero
        self._run(
            "WITH before AS MATERIALIZED (SELECT s.{key} AS key, s.{column} AS vector "
            "FROM {seen} s JOIN {other} o ON o.{key} = s.{key}), "
            "changed AS (UPDATE {table} t SET {column} = coalesce(o.{column}, {blank}) "
            "FROM before b JOIN {other} o ON o.{key} = b.key WHERE t.{key} = b.key) "
            "UPDATE {other} o SET {column} = b.vector FROM before b WHERE o.{key} = b.key",
            blank=empty,
        )

    def queue_different(self) -> int | None:
        """Queue each row of the other table that differs, although no change of it waits.

        Returns the number of rows; None while a TRUNCATE waits, before which none can be compared.
        """
        if self._run("SELECT FROM {queue} WHERE key IS NULL LIMIT 1").rowcount:
            return None
        seen = self.layout.seen
        copied = {each.name for each in self.layout.other.columns}
        names = [each for each in (seen.key.name, *seen.payload) if each in copied]
        texts = differing_texts(seen, "s", "o") if seen.selected is None else []
        row_s, row_o = (
            sql.SQL(", ").join(sql.Identifier(table, name) for name in names) for table in "so"
        )
        return self._run(
            "INSERT INTO {queue} (key, rows_only) SELECT o.{key}, NOT ({differ}) FROM {other} o "
            "LEFT JOIN {seen} s ON s.{key} = o.{key} "
            "WHERE ROW({row_o})::text IS DISTINCT FROM ROW({row_s})::text "
            "AND o.{key} NOT IN (SELECT key FROM {queue} WHERE key IS NOT NULL)",
            row_s=row_s,
            row_o=row_o,
            differ=sql.SQL(" OR ").join([sql.SQL("false"), *texts]),
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

    def _parameters(
        self, ids: Sequence[StoreId], vectors: StoreVectors, table: PgTable | None = None
    ) -> dict[str, Any]:
        """Return keys, and vectors as a table stores them, by default the other one."""
        target = table or self.layout.other
        if len(ids) and vectors.shape != (len(ids), target.dim or vectors.shape[1]):
            raise DimensionMismatch(
                f"Vectors of shape {vectors.shape} were written for {len(ids)} rows of "
                f"{target.dim} dimensions. Translate them to the target encoder."
            )
        is_half = target.vectors.type_name == "halfvec"
        with np.errstate(over="ignore"):
            stored = vectors.astype(np.float16 if is_half else np.float32)
        if not np.isfinite(stored).all():
            raise NonFinite(
                "A new vector contains a number that is not finite, or too large for "
                f"{target.vectors.type_name}."
            )
        wrap = HalfVector if is_half else Vector
        keys = target.stored_keys(ids)
        if len(keys) < len(ids):
            raise StoreChanged("Some ids are no keys of the table. Plan a new migration.")
        return {"ids": keys, "vectors": [wrap(row) for row in stored]}

    def _copy(
        self,
        vector: LiteralString,
        tail: LiteralString,
        values: Mapping[str, Any],
        *,
        replace: bool,
    ) -> None:
        """Copy rows `r` that clients see to the other table, each with `vector`."""
        known = {self.layout.seen.key.name, *self.layout.seen.payload}
        columns = [
            sql.Identifier(each.name)
            for each in self.layout.other.columns
            if each.name in known and not each.generated
        ]
        written = [*columns, sql.Identifier(self.layout.other.vectors.name)]
        comma = sql.SQL(", ")
        conflict: LiteralString = "UPDATE SET {set}" if replace else "NOTHING"
        beginning: LiteralString = "INSERT INTO {other} ({written}) SELECT {rows}, "
        rest = f"{vector} FROM {{seen}} r {tail} ON CONFLICT ({{key}}) DO {conflict}"
        for _ in range(WRITE_ATTEMPTS):
            try:
                with self.layout.connection.transaction():
                    self._run(
                        beginning + rest,
                        values,
                        written=comma.join(written),
                        rows=comma.join(sql.SQL("r.{}").format(each) for each in columns),
                        set=comma.join(sql.SQL("{0} = EXCLUDED.{0}").format(e) for e in written),
                    )
                    self._run("SET CONSTRAINTS ALL IMMEDIATE")  # not first at the commit
                return
            except psycopg.errors.UniqueViolation:
                self.delete_waiting()
        raise StoreUnavailable(
            "Clients move unique values between rows faster than they can be copied. Try again."
        )


class PgNewVectors(base.Migration):
    """The new vectors of one migration, in a copy of the table."""

    def __init__(
        self, connections: PgConnections, location: base.StoreLocation, tag: str, dim: int
    ) -> None:
        self.connections = connections
        self.location = location
        self.tag = tag
        self.dim = dim

    def prepare(self) -> None:
        with self.connections.use("to check the table") as connection:
            if load_layout(connection, self.location).moving is not None:
                self._load(connection)  # no lock, because the index may be under construction
                return
        run_locked(self.connections, self.location, "to prepare the migration", self._create)

    def _create(self, connection: StoreConnection) -> None:
        seen = load_layout(connection, self.location).seen
        connection.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended('anchorage', %s))", [seen.oid]
        )
        layout = load_layout(connection, self.location)  # as another process left it
        if layout.moving is None:
            self._require_no_traces(connection)
            # Refused by the server where row security hides rows from the role.
            connection.run("SELECT FROM {} LIMIT 0", layout.seen.identifier)
            for other in states_of(layout.seen):  # of other rows of the table
                raise another_migration(other.tag)
            self._create_second(layout)
            state = PgState(self.tag, "prepared", layout.seen.name, where=layout.seen.where)
            layout = replace(layout, moving=state)
            create_queue(layout)
            start_capture(layout.seen, self.tag)
            save_state(layout, state)
        self._load(connection)

    def _create_second(self, layout: PgLayout) -> None:
        require_no_obstacles(layout)
        create_second(layout.seen, self.tag, new_type(layout, self.location, self.dim), self.dim)

    def write(
        self, ids: Sequence[StoreId], vectors: StoreVectors, *, replace: bool = False
    ) -> None:
        if len(ids):
            with self._follow("to write new vectors") as follower:
                if follower.layout.state.is_cut_over:
                    raise WrongState("Clients see the new vectors. Roll back before you run.")
                follower.write(ids, vectors, replace=replace)

    def rewrite(self, seen: Page, vectors: StoreVectors) -> Sequence[StoreId]:
        written: list[StoreId] = []
        for first in range(0, len(seen.ids), CAPTURED_ROWS):
            part = slice(first, first + CAPTURED_ROWS)
            with self._follow("to write vectors again") as follower:
                written += follower.rewrite(Page(seen.ids[part], seen.vectors[part]), vectors[part])
        return written

    def read(self, ids: Sequence[StoreId]) -> Page:
        with self.connections.use("to fetch rows") as connection:
            return load_layout(connection, self.location).table("new").fetch(ids)

    def count(self) -> int:
        with self.connections.use("to count new vectors", long=True) as connection:
            layout = load_layout(connection, self.location)
            if layout.moving is None:
                return 0
            new = layout.table("new")
            query: LiteralString = "SELECT count(*) FROM {} v WHERE {}"
            [(count,)] = connection.run(query, new.rows, self._has_vector(new)).fetchall()
            return int(count)

    def _has_vector(self, new: PgTable) -> sql.Composable:
        """Return the condition of a row with a new vector: not empty, and not zeros."""
        template = sql.SQL("{} OPERATOR({}.<>) {}")
        extension = sql.Identifier(new.connection.extension)
        return template.format(sql.Identifier(new.vectors.name), extension, new.zero)

    def build_index(self) -> None:
        self.copy_indexes()
        with self.connections.use("to gather statistics", long=True) as connection:
            connection.run("ANALYZE {}", self._load(connection).other.identifier)

    def copy_indexes(self) -> None:
        action = "to build the indexes"
        with self.connections.use(action, long=True, whole=False) as connection:
            layout = self._load(connection)
            copy_indexes(layout, Follower(layout).delete_waiting)

    def changes(self, limit: int) -> Changes:
        with self.connections.use("to read captured writes") as connection:
            layout = load_layout(connection, self.location)
            if layout.moving is None:
                return Changes([], np.zeros((0, self.dim), np.float32))
            return Follower(layout).read_changes(limit)

    def apply(self, changes: Changes, vectors: StoreVectors) -> None:
        with self._follow("to apply captured writes") as follower:
            follower.apply(changes, vectors)

    def count_different(self, hear: base.HearRows, apply: Callable[[], object]) -> int | None:
        return self.requeue_different()

    def requeue_different(self, *, only_rewritten: bool = False) -> int | None:
        """Make rows wait for `apply` that differ between both tables, as `count_different`.

        only_rewritten  only if PostgreSQL has rewritten a table since both were the same
        """
        with self._follow("to compare rows") as follower:
            layout = follower.layout
            files = layout.files()
            if only_rewritten and files == layout.state.files:
                return 0
            require_same_tables(layout)
            count = follower.queue_different()
            if count == 0:
                save_state(layout, replace(layout.state, files=files))
            return count

    @contextmanager
    def _follow(self, action: str) -> Iterator[Follower]:
        with self.connections.use(action, long=True) as connection:
            yield Follower(self._load(connection))

    def _load(self, connection: StoreConnection) -> PgLayout:
        """Return the layout. Raises StoreChanged if it differs from that of `prepare`."""
        layout = load_layout(connection, self.location)
        if layout.moving is None:
            self._require_no_traces(connection)
        require_same(layout, self.tag, self.dim)
        require_capture(layout)
        return layout

    def _require_no_traces(self, connection: StoreConnection) -> None:
        names = [name for name, *_ in traces_of(connection, self.location, self.tag)]
        if names:
            step = "`finish`" if name_of(self.tag, "old") in names else "`abandon`"
            raise StoreChanged(
                f"The state of the migration is missing: the table {name_of(self.tag, 'queue')} "
                "was dropped, its comment was changed, or its owner is not the table's. "
                "Writes of clients may be lost, or fail. "
                f"{step} the migration: it removes {', '.join(sorted(names))}."
            )


def save_state(layout: PgLayout, state: PgState) -> None:
    text = json.dumps({"anchorage": 1, "state": state.__dict__}, separators=(",", ":"))
    layout.connection.run("COMMENT ON TABLE {} IS {}", layout.queue, sql.Literal(text))
