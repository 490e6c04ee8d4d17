"""What the strategies share: locks that are tried briefly, the queue, and the index."""

from __future__ import annotations

import random
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
import psycopg
from psycopg import sql

from app.errors import (
    DimensionMismatch,
    StoreChanged,
    StoreRefused,
    StoreUnavailable,
    StoreUnsupported,
)
from app.stores.base import (
    Beside,
    Changes,
    StoreId,
    StoreLocation,
    StoreVectors,
    Switch,
    TranslateRows,
)
from app.stores.pgvector.capture import (
    acknowledge,
    claim,
    create_queue,
    drop_queue,
    read_changes,
    require_capture,
    start_capture,
    stop_capture,
)
from app.stores.pgvector.connections import (
    PgConnections,
    StoreConnection,
    copy_bytes,
    key_type,
    zero_vector,
)
from app.stores.pgvector.facts import (
    first_state,
    require_no_obstacles,
    require_phase,
    require_rights,
    require_same,
)
from app.stores.pgvector.layout import (
    PgLayout,
    PgRelation,
    PgState,
    PgVectors,
    comment,
    load_layout,
    name_of,
    states_of_tag,
)

#: how much longer than deadlock_timeout to wait: then the server cancels the autovacuum
GRACE_MS = 2_000


def stop_autovacuum(connection: StoreConnection, location: StoreLocation) -> None:
    """Stop autovacuums of all tables of a collection.

    Missing tables and rights are for the next step to name, or, to abandon, no obstacle.
    """
    lacking = (StoreChanged, StoreRefused, StoreUnsupported)
    with suppress(*lacking, psycopg.errors.InsufficientPrivilege), connection.transaction():
        layout = load_layout(connection, location)
        used = [layout.rows, layout.old.relation]
        used += [] if layout.new is None else [layout.new.relation]
        _wait_for(connection, used)


def _wait_for(connection: StoreConnection, tables: Iterable[PgRelation]) -> None:
    """Wait for autovacuums of these tables, and keep new ones away until the transaction ends.

    The server cancels an autovacuum once somebody has waited deadlock_timeout for its lock. An
    autovacuum of a table with an HNSW index takes minutes. Clients do not wait meanwhile: SHARE
    UPDATE EXCLUSIVE conflicts with none of their statements. Raises psycopg's LockNotAvailable.
    """
    connection.execute(
        "SELECT set_config('lock_timeout', (%s + 1000 * extract(epoch FROM "
        "current_setting('deadlock_timeout')::interval))::int::text, true)",
        [GRACE_MS],
    )
    for table in {each.oid: each for each in tables}.values():
        connection.run("LOCK TABLE {} IN SHARE UPDATE EXCLUSIVE MODE", table.identifier)


Result = TypeVar("Result")

#: how often to look whether another build has ended
BUILD_POLL_S = 0.5

#: longest wait for one lock, during which others queue behind; and for how long to try again
LOCK_MS, LOCK_PATIENCE_S = 100, 60.0

#: the steps that are one transaction: without the lock, they change nothing
WHOLE_STEPS = ("to cut over", "to roll back", "to finish", "to abandon")

#: captured writes of one transaction, which locks their rows, and how long such transactions may
#: follow each other until few are left
CAPTURED_ROWS, DRAIN_PATIENCE_S = 100, 300.0

#: most rows to translate while clients wait: as many as take this long, between these limits
REMAINDER_S, REMAINDER_ROWS = 0.1, (32, 400)


class PgBeside(Beside):
    """The new vectors of one reindexing in a separate table: the common part."""

    strategy: str
    whole_rows = False

    def __init__(
        self, connections: PgConnections, location: StoreLocation, tag: str, dim: int
    ) -> None:
        self.connections = connections
        self.location = location
        self.tag = tag
        self.dim = dim

    @abstractmethod
    def _create(self, connection: StoreConnection, layout: PgLayout, state: PgState) -> None:
        """Create the table of new vectors."""

    @abstractmethod
    def _store(
        self, connection: StoreConnection, layout: PgLayout, incoming: sql.Identifier, replace: bool
    ) -> None:
        """Write rows of the table `incoming` to the new side."""

    @abstractmethod
    def _store_back(
        self,
        connection: StoreConnection,
        layout: PgLayout,
        incoming: sql.Identifier,
        numbers: list[int],
    ) -> None:
        """Write `incoming` to the old side after a cutover, for these entries of the queue."""

    @abstractmethod
    def _forget(
        self, connection: StoreConnection, layout: PgLayout, gone: list[Any], truncated: bool
    ) -> None:
        """Repeat on the other side that these keys have no vector or no row."""

    @abstractmethod
    def _switch(self, connection: StoreConnection, layout: PgLayout) -> None:
        """Make clients see the new vectors, under the lock."""

    @abstractmethod
    def _switch_back(self, connection: StoreConnection, layout: PgLayout) -> None:
        """Make clients see the old vectors, under the lock."""

    def _before_switch(self, layout: PgLayout) -> None:
        """Do what takes long, before the lock of a cutover."""

    def _after_switch(self) -> None:
        """Do what takes long, after a cutover."""

    def _before_switch_back(self) -> None:
        """Do what takes long, before the lock of a rollback."""

    def _after_switch_back(self) -> None:
        """Do what takes long, after a rollback."""

    # --- steps ------------------------------------------------------------------------------------

    def prepare(self) -> None:
        with self.connections.use("to check the table") as connection:
            layout = load_layout(connection, self.location)
            if layout.state is not None:  # no lock, because the index may be under construction
                require_same(layout, self.tag, self.strategy, self.dim)
                require_capture(connection, layout.seen, whole_rows=self.whole_rows)
                return

        def step(connection: StoreConnection) -> None:
            layout = load_layout(connection, self.location)
            connection.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))",
                [f"anchorage {layout.table.schema}.{layout.table.name}"],
            )
            layout = load_layout(connection, self.location)  # as another process left it
            if layout.state is not None:
                require_same(layout, self.tag, self.strategy, self.dim)
                require_capture(connection, layout.seen, whole_rows=self.whole_rows)
                return
            require_rights(connection, layout)
            require_no_obstacles(connection, layout, self.strategy)
            state = first_state(
                connection, layout, self.location, self.tag, self.strategy, self.dim
            )
            self._create(connection, layout, state)
            create_queue(
                connection,
                state,
                layout.table.schema,
                layout.key.name,
                layout.kind,
                layout.rows.owner,
            )
            start_capture(connection, self.tag, layout.old, whole_rows=self.whole_rows)
            self._save(connection, layout, state)

        self._with_lock("to prepare the reindexing", step)

    def write(
        self, ids: Sequence[StoreId], vectors: StoreVectors, *, replace: bool = False
    ) -> None:
        if not len(ids):
            return
        with self.connections.transaction("to write new vectors", long=True) as connection:
            layout, state = self._load(connection)
            incoming = self._copy(connection, layout, state.type_name, self.dim, ids, vectors)
            self._store(connection, layout, incoming, replace)

    def count(self) -> int:
        with self.connections.use("to count new vectors", long=True) as connection:
            layout = load_layout(connection, self.location)
            if layout.state is None or layout.new is None:
                return 0
            row = connection.run(
                "SELECT count(*) FROM {} WHERE {} OPERATOR({}.<>) {}",
                layout.new.relation.identifier,
                layout.new.column,
                connection.extension,
                zero_vector(connection.extension, layout.new.type_name, self.dim),
            ).fetchone()
            return 0 if row is None else int(row[0])

    def build_index(self) -> None:
        with self.connections.use("to build the index", long=True) as connection:
            layout, state = self._load(connection)
            new = layout.vectors("new")
            for number, index in enumerate(state.details["indexes"]):
                name = f"{name_of(self.tag, 'index')}_{number}"
                build_vector_index(connection, new, name, index, state.type_name)
            connection.run("ANALYZE {}", new.relation.identifier)

    def changes(self, limit: int) -> Changes:
        with self.connections.use("to read captured writes") as connection:
            layout = load_layout(connection, self.location)
            if layout.state is None:
                return Changes([], np.zeros((0, self.dim), np.float32))
            limit = min(limit, CAPTURED_ROWS)
            return read_changes(connection, layout.state, layout.seen, layout.kind, limit)

    def apply(self, changes: Changes, vectors: StoreVectors) -> None:
        with self.connections.transaction("to apply captured writes", long=True) as connection:
            layout, _ = self._load(connection)
            self._apply(connection, layout, changes, vectors)

    def cutover(self, translate: TranslateRows) -> Switch:
        with self.connections.use("to check the table") as connection:
            layout, state = self._load(connection)
        pause = Switch(0.0)
        if not state.is_cut_over:
            self._before_switch(layout)
            pause = self._flip("to cut over", translate, to_new=True)
        self._after_switch()
        return pause

    def rollback(self, translate_back: TranslateRows) -> Switch:
        with self.connections.use("to check the table") as connection:
            _, state = self._load(connection)
        pause = Switch(0.0)
        if state.is_cut_over:
            self._before_switch_back()
            pause = self._flip("to roll back", translate_back, to_new=False)
        self._after_switch_back()
        return pause

    def abandon(self) -> None:
        def step(connection: StoreConnection) -> None:
            for schema, state in states_of_tag(connection, self.location, self.tag):
                require_phase(state, cut_over=False, action="be abandoned")
                drop_queue(connection, state, schema)  # and with its function the triggers
                connection.run("DROP TABLE IF EXISTS {}", sql.Identifier(schema, state.new))

        self._with_lock("to abandon", step)

    # --- parts ------------------------------------------------------------------------------------

    def _flip(self, action: str, translate: TranslateRows, *, to_new: bool) -> Switch:
        most = REMAINDER_ROWS[0]

        def step(connection: StoreConnection) -> bool:
            layout, state = self._load(connection)
            if state.is_cut_over == to_new:
                return True
            # Clients lock the view before its tables: the other order would end in a deadlock.
            tables = {e.oid: e for e in (layout.table, layout.rows, layout.old.relation)}
            tables[layout.vectors("new").relation.oid] = layout.vectors("new").relation
            for table in tables.values():
                connection.run("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE", table.identifier)
            layout, _ = self._load(connection)  # nothing can change it from here on
            changes = read_changes(connection, state, layout.seen, layout.kind, most + 1)
            if len(changes.token) > most:
                return False
            if len(changes):
                vectors = translate(changes.ids, changes.vectors)
                if not self._apply(connection, layout, changes, vectors):
                    return False
            stop_capture(connection, layout.seen)
            (self._switch if to_new else self._switch_back)(connection, layout)
            return True

        longest, until = 0.0, time.monotonic() + DRAIN_PATIENCE_S
        while time.monotonic() < until:
            most = self._drain(translate, until)
            done, pause = self._with_lock(action, step)
            longest = max(longest, pause)
            if done:
                return Switch(longest)
        raise StoreUnavailable(
            f"For {DRAIN_PATIENCE_S:.0f} s, clients wrote faster than their writes can be "
            "translated. Try again when they write less."
        )

    def _drain(self, translate: TranslateRows, until: float) -> int:
        """Apply captured writes until few are left. Returns how many rows take REMAINDER_S."""
        least, most = REMAINDER_ROWS
        remainder = least
        while time.monotonic() < until:
            began = time.monotonic()
            changes = self.changes(CAPTURED_ROWS)
            if not changes.token:
                break
            self.apply(changes, translate(changes.ids, changes.vectors))
            rate = len(changes.token) / (time.monotonic() - began)
            remainder = int(min(max(least, rate * REMAINDER_S), most))
            if len(changes.token) <= min(remainder // 2, CAPTURED_ROWS - 1):
                break
        return remainder

    def _apply(
        self, connection: StoreConnection, layout: PgLayout, changes: Changes, vectors: StoreVectors
    ) -> bool:
        """Apply changes. Returns False, and writes nothing, if some no longer wait."""
        state, numbers = layout.state, changes.token
        if state is None or not numbers:
            return True
        if not claim(connection, state, layout.table.schema, numbers):
            return False
        if len(changes.ids):
            other = layout.old if state.is_cut_over else layout.vectors("new")
            dim = vectors.shape[1] if other.dim is None else other.dim
            incoming = self._copy(connection, layout, other.type_name, dim, changes.ids, vectors)
            if state.is_cut_over:
                self._store_back(connection, layout, incoming, numbers)
            else:
                self._store(connection, layout, incoming, replace=True)
        if changes.deleted or changes.truncated:
            self._forget(connection, layout, list(changes.deleted), changes.truncated)
        acknowledge(connection, state, layout.table.schema, numbers)
        return True

    def _copy(
        self,
        connection: StoreConnection,
        layout: PgLayout,
        type_name: str,
        dim: int,
        ids: Sequence[StoreId],
        vectors: StoreVectors,
    ) -> sql.Identifier:
        """Copy rows into a table of this transaction."""
        if vectors.shape != (len(ids), dim):
            raise DimensionMismatch(
                f"Vectors of shape {vectors.shape} were written for {len(ids)} rows of {dim} "
                "dimensions. Translate them to the target encoder."
            )
        incoming = sql.Identifier("pg_temp", name_of(self.tag, "incoming"))
        connection.run(
            "CREATE TEMPORARY TABLE {} (key {}, vector {}) ON COMMIT DROP",
            name_of(self.tag, "incoming"),
            key_type(layout.kind),
            sql.Identifier(connection.extension, type_name),
        )
        with connection.cursor().copy(
            sql.SQL("COPY {} FROM STDIN BINARY").format(incoming)
        ) as copy:
            copy.write(copy_bytes(ids, vectors, layout.kind, type_name))
        return incoming

    def _with_lock(
        self, action: str, step: Callable[[StoreConnection], Result]
    ) -> tuple[Result, float]:
        """Run a step in a transaction that waits briefly for locks, and again if it must.

        Returns its result, and the longest time that one attempt kept others waiting.
        """
        until, longest = time.monotonic() + LOCK_PATIENCE_S, 0.0
        with self.connections.use(action) as connection:
            while True:
                began: float | None = None
                try:
                    with connection.transaction():
                        stop_autovacuum(connection, self.location)
                        began = time.monotonic()  # no client has waited until here
                        connection.execute(f"SET LOCAL lock_timeout = {LOCK_MS}")
                        result = step(connection)
                    return result, max(longest, time.monotonic() - began)
                except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
                    if began is not None:
                        longest = max(longest, time.monotonic() - began)
                    if time.monotonic() > until:
                        error = StoreUnavailable(
                            f"Other transactions hold the table for more than "
                            f"{LOCK_PATIENCE_S:.0f} s. End them, and try again."
                        )
                        error.is_unchanged = action in WHOLE_STEPS
                        raise error from None
                time.sleep(random.uniform(0.05, 0.3))  # noqa: S311 (no secret)

    def _load(self, connection: StoreConnection) -> tuple[PgLayout, PgState]:
        """Return the layout and the state. Raises StoreChanged if they differ from `prepare`'s."""
        layout = load_layout(connection, self.location)
        if layout.state is None:
            raise StoreChanged(
                "The table has no traces of this reindexing. Plan a new one.", field="collection"
            )
        state = require_same(layout, self.tag, self.strategy, self.dim)
        require_capture(connection, layout.seen, whole_rows=self.whole_rows)
        return layout, state

    def _save(self, connection: StoreConnection, layout: PgLayout, state: PgState) -> None:
        queue = sql.Identifier(layout.table.schema, state.queue)
        connection.execute(comment(queue, state.text()))


def build_vector_index(
    connection: StoreConnection,
    new: PgVectors,
    name: str,
    index: Sequence[Any],
    type_name: str,
) -> None:
    """Build an index concurrently, like the one of the old vectors, unless it exists.

    The server continues a build whose client was killed: this waits for it, and uses the index.
    """
    _wait_for_build(connection, new)
    method, schema, operators, options = index
    identifier = sql.Identifier(new.relation.schema, name)
    row = connection.execute(
        "SELECT i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
        "WHERE i.indrelid = %s AND c.relname = %s",
        [new.relation.oid, name],
    ).fetchone()
    if row is not None and row[0]:
        return
    if row is not None:  # a build that was interrupted
        connection.run("DROP INDEX CONCURRENTLY {}", identifier)
    operators = type_name + "_" + operators.split("_", 1)[1]
    connection.run(
        "CREATE INDEX CONCURRENTLY {} ON {} USING {} ({} {}){}",
        name,
        new.relation.identifier,
        method,
        new.column,
        sql.Identifier(schema, operators),
        sql.SQL(f" WITH ({', '.join(options)})" if options else ""),
    )


def _wait_for_build(connection: StoreConnection, new: PgVectors) -> None:
    while connection.execute(
        "SELECT 1 FROM pg_stat_progress_create_index WHERE relid = %s", [new.relation.oid]
    ).fetchone():
        time.sleep(BUILD_POLL_S)
