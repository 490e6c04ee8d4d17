"""The steps of a migration: a second table is filled, and takes the name of the first.

Captured changes are repeated in the second table as whole rows, and after a cutover in the old one.
Locks are tried briefly, so that clients do not queue behind them. A step that locks several tables
gives all up before the server looks for deadlocks: a backup, which locks every table too, would be
the one that the server ends.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np
import psycopg
from psycopg import sql

from app.errors import (
    StoreChanged,
    StoreRefused,
    StoreUnavailable,
    StoreUnsupported,
    WrongState,
)
from app.stores.pgvector import reading
from app.stores.pgvector.attachments import (
    Attachments,
    attach,
    copy_indexes,
    copy_key_index,
    copy_rights,
    detach,
    exchange_names,
    has_same_indexes,
    lock_all,
    locks_of,
    move_sequences,
    name_not_null,
    require_same_definitions,
    validate,
)
from app.stores.pgvector.capture import (
    create_queue,
    read_changes,
    require_capture,
    start_capture,
    stop_capture,
)
from app.stores.pgvector.connections import (
    PgConnections,
    StoreConnection,
    zero_vector,
)
from app.stores.pgvector.copying import (
    apply_changes,
    copy_missing,
    create_copy,
    requeue_different,
    table_files,
    write_new,
)
from app.stores.pgvector.facts import (
    DependentView,
    create_views,
    dependent_views,
    first_state,
    require_no_obstacles,
    require_rights,
    require_same,
)
from app.stores.pgvector.layout import (
    PgLayout,
    PgState,
    load_layout,
    load_relation,
    name_of,
    state_of_tag,
    traces_of,
)
from app.stores.port import (
    Changes,
    Migration,
    Page,
    StoreId,
    StoreLocation,
    StoreVectors,
    Switch,
    TranslateRows,
)

#: longest wait for one lock, during which others queue behind; and for how long to try again
LOCK_MS, LOCK_PATIENCE_S = 100, 60.0

#: shares of deadlock_timeout: within which a step begins to wait for its last lock, and of one wait
LOCKING_SHARE, LOCK_SHARE = 0.5, 0.25

#: how much longer than deadlock_timeout to wait: then the server cancels the autovacuum
GRACE_S = 2.0

#: the steps that are one transaction: without the lock, they change nothing
WHOLE_STEPS = ("to cut over", "to roll back", "to finish", "to abandon")

#: captured writes of one transaction, which locks their rows, and how long such transactions may
#: follow each other until few are left
CAPTURED_ROWS, DRAIN_PATIENCE_S = 100, 300.0

#: most rows to translate while clients wait: as many as take this long, between these limits
REMAINDER_S, REMAINDER_ROWS = 0.1, (32, 400)

Result = TypeVar("Result")


class TryAgain(Exception):
    """Raised in a step that must give its locks up, and begin anew.

    after_s  how long it has had locks, if that is why
    """

    def __init__(self, after_s: float | None = None) -> None:
        super().__init__()
        self.after_s = after_s


class Locking:
    """The time from the first lock of a step on, within which its last wait for one begins."""

    def __init__(self, within_s: float) -> None:
        self.within_s = within_s
        self._began: float | None = None

    def require_time(self) -> None:
        """Call it before each lock. Raises TryAgain if it would be too late."""
        if self._began is None:
            self._began = time.monotonic()
        elif (after_s := time.monotonic() - self._began) > self.within_s:
            raise TryAgain(after_s)


class PgMigration(Migration):
    """The new vectors of one migration, in a copy of the table."""

    def __init__(
        self, connections: PgConnections, location: StoreLocation, tag: str, dim: int
    ) -> None:
        self.connections = connections
        self.location = location
        self.tag = tag
        self.dim = dim

    # --- steps ------------------------------------------------------------------------------------

    def prepare(self) -> None:
        with self.connections.use("to check the table") as connection:
            if load_layout(connection, self.location).state is not None:
                self._load(connection)  # no lock, because the index may be under construction
                return

        def step(connection: StoreConnection, _: Locking) -> None:
            table = load_layout(connection, self.location).table
            connection.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))",
                [f"anchorage {table.schema}.{table.name}"],
            )
            layout = load_layout(connection, self.location)  # as another process left it
            if layout.state is not None:
                self._load(connection)
                return
            self._require_no_traces(connection)
            require_rights(connection, layout)
            require_no_obstacles(connection, layout)
            state = first_state(connection, layout, self.location, self.tag, self.dim)
            create_copy(connection, layout, state)
            copy_key_index(connection, layout, state)
            create_queue(connection, state, table.schema, layout.kind, table.owner)
            start_capture(connection, self.tag, layout.old)
            self._save(connection, layout, state)

        self._with_lock("to prepare the migration", step)

    def write(
        self, ids: Sequence[StoreId], vectors: StoreVectors, *, replace: bool = False
    ) -> None:
        if not len(ids):
            return
        with self.connections.transaction("to write new vectors", long=True) as connection:
            layout, _ = self._load(connection)
            write_new(connection, layout, ids, vectors, replace=replace)

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
        self._copy_indexes()
        with self.connections.use("to analyze the table", long=True) as connection:
            layout, _ = self._load(connection)
            connection.run("ANALYZE {}", layout.other.relation.identifier)

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
            apply_changes(connection, layout, changes, vectors)

    def cutover(self, translate: TranslateRows) -> Switch:
        return self._switch("to cut over", translate, to_new=True)

    def rollback(self, translate_back: TranslateRows) -> Switch:
        return self._switch("to roll back", translate_back, to_new=False)

    def finish(self) -> None:
        self._validate()
        self._with_lock("to finish", partial(self._remove, cut_over=True))

    def abandon(self) -> None:
        self._validate()
        self._with_lock("to abandon", partial(self._remove, cut_over=False))

    def read(self, ids: Sequence[StoreId]) -> Page:
        with self.connections.use("to fetch rows") as connection:
            layout = load_layout(connection, self.location)
            return reading.fetch(connection, layout.vectors("new"), layout.kind, ids)

    def requeue_different(self) -> int | None:
        return self._compare(always=True)

    # --- parts ------------------------------------------------------------------------------------

    def _remove(self, connection: StoreConnection, locking: Locking, *, cut_over: bool) -> None:
        """Drop the table that clients do not see, and all traces, by their names."""
        found = traces_of(connection, self.location, self.tag)
        if not found:
            return
        names = [name for _, name in found]
        state = state_of_tag(connection, found[0][0], self.tag)
        is_old = name_of(self.tag, "new") in names if state is None else not state.is_cut_over
        is_new = name_of(self.tag, "old") in names if state is None else state.is_cut_over
        if is_old and cut_over:
            raise WrongState("The migration cannot finish: it is not cut over. Cut over first.")
        if is_new and not cut_over:
            raise WrongState(
                "The migration cannot be abandoned: it is cut over. Roll back first, or finish."
            )
        capture = name_of(self.tag, "capture")
        for schema, name in sorted(found, key=lambda each: each[1] != capture):
            locking.require_time()
            if name == capture:  # and with it the triggers
                connection.run("DROP FUNCTION {}() CASCADE", sql.Identifier(schema, name))
            else:
                connection.run("DROP TABLE {}", sql.Identifier(schema, name))

    def _require_same_tables(self, connection: StoreConnection, layout: PgLayout) -> None:
        """Raises StoreChanged and StoreUnsupported for what a switch would undo or not move."""
        require_same_definitions(connection, layout)
        require_no_obstacles(connection, layout)

    def _validate(self) -> None:
        """Validate the foreign keys that a switch has added."""
        state = None
        with self.connections.use("to read the state") as connection:
            for schema, _ in traces_of(connection, self.location, self.tag)[:1]:
                state = state_of_tag(connection, schema, self.tag)
        for each in () if state is None else state.unvalidated:

            def step(connection: StoreConnection, _: Locking, key: Sequence[str] = each) -> None:
                validate(connection, key)

            self._with_lock("to validate a foreign key", step, long=True)

    def _compare(self, *, always: bool) -> int | None:
        """Queue rows that differ between both tables, as `requeue_different` of copying.py.

        Unless `always`, only after PostgreSQL has rewritten a table since the last comparison.
        """
        with self.connections.transaction("to compare rows", long=True) as connection:
            layout, state = self._load(connection)
            files = table_files(connection, layout)
            if files == state.files and not always:
                return 0
            self._require_same_tables(connection, layout)
            count = requeue_different(connection, layout)
            if count == 0:
                self._save(connection, layout, replace(state, files=files))
            return count

    def _copy_indexes(self) -> None:
        with self.connections.use("to build the indexes", long=True) as connection:
            layout, _ = self._load(connection)
            copy_indexes(connection, layout, self.tag)

    def _switch(self, action: str, translate: TranslateRows, *, to_new: bool) -> Switch:
        pause = Switch(0.0)
        with self.connections.transaction("to check the table", long=True) as connection:
            layout, state = self._load(connection)
            if is_needed := state.is_cut_over != to_new:
                self._require_same_tables(connection, layout)
                copy_missing(connection, layout)
        if is_needed:
            self.build_index()
            pause = self._flip(action, translate, to_new=to_new)
        self._validate()
        return pause

    def _flip(self, action: str, translate: TranslateRows, *, to_new: bool) -> Switch:
        most = REMAINDER_ROWS[0]

        def step(connection: StoreConnection, locking: Locking) -> bool:
            layout, state = self._load(connection)
            if state.is_cut_over == to_new:
                return True
            locks = locks_of(connection, layout)
            locking.require_time()
            lock_all(connection, locks, locking.within_s)
            layout, state = self._load(connection)  # nothing can change it from here on
            if locks_of(connection, layout) != locks:  # a view or a foreign key came meanwhile
                raise TryAgain
            is_same = has_same_indexes(connection, layout, self.tag)
            if not is_same or table_files(connection, layout) != state.files:
                return False
            changes = read_changes(connection, state, layout.seen, layout.kind, most + 1)
            if len(changes.token) > most:
                return False
            parts = self._take_apart(connection, layout, locking)
            if len(changes):  # it may take long: no other table must be locked after it
                vectors = translate(changes.ids, changes.vectors)
                if not apply_changes(connection, layout, changes, vectors):
                    return False
            self._exchange(connection, layout, state, *parts)
            return True

        longest, until = 0.0, time.monotonic() + DRAIN_PATIENCE_S
        while time.monotonic() < until:
            self._copy_indexes()
            most = self._drain(translate, until)
            if self._compare(always=False) != 0:
                continue
            done, pause = self._with_lock(action, step)
            longest = max(longest, pause)
            if done:
                return Switch(longest)
        raise StoreUnavailable(
            f"For {DRAIN_PATIENCE_S:.0f} s, clients wrote faster than their writes can be "
            "translated, or altered the table. Try again when they write less."
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

    def _take_apart(
        self, connection: StoreConnection, layout: PgLayout, locking: Locking
    ) -> tuple[Sequence[DependentView], Attachments]:
        """Take the triggers, views and foreign keys from the table that clients see."""
        self._require_same_tables(connection, layout)
        stop_capture(connection, layout.seen)
        views = dependent_views(connection, layout.table.oid)
        for each in reversed(views):
            connection.run("DROP VIEW {}", each.identifier)
        return views, detach(connection, layout.table, locking.require_time)

    def _exchange(
        self,
        connection: StoreConnection,
        layout: PgLayout,
        state: PgState,
        views: Sequence[DependentView],
        attachments: Attachments,
    ) -> None:
        """Give the name, and all that belongs to it, to the table that clients do not see."""
        front, other = layout.table, layout.other
        phase = "rolled-back" if state.is_cut_over else "cut-over"
        after = replace(state, phase=phase)
        for table, name in ((front, after.hidden), (other.relation, front.name)):
            connection.run("ALTER TABLE {} RENAME TO {}", table.identifier, name)
        now = load_relation(connection, other.relation.oid)
        hidden = load_relation(connection, front.oid)
        exchange_names(connection, self.tag, hidden)
        name_not_null(connection, hidden, now)
        copy_rights(connection, front, now)
        move_sequences(connection, self.tag, front, other.relation, (hidden, now))
        attach(connection, attachments)
        create_views(connection, views)
        start_capture(connection, self.tag, replace(other, relation=now))
        keys = [list(each) for each in attachments.foreign_keys]
        # A switch that was killed may have left some to validate.
        keys += [list(each) for each in state.unvalidated if list(each) not in keys]
        self._save(connection, layout, replace(after, unvalidated=keys))

    def _with_lock(
        self, action: str, step: Callable[[StoreConnection, Locking], Result], *, long: bool = False
    ) -> tuple[Result, float]:
        """Run a step in a transaction that waits briefly for locks, and again if it must.

        What a step that returns False has done is undone. Returns the result of the step, and the
        longest time that one attempt kept others waiting.
        """
        until, longest = time.monotonic() + LOCK_PATIENCE_S, 0.0
        with self.connections.use(action, long=long) as connection:
            deadlock_s = _deadlock_timeout(connection)
            lock_ms = max(1, min(LOCK_MS, int(1000 * LOCK_SHARE * deadlock_s)))
            while True:
                began: float | None = None
                try:
                    self._stop_autovacuum(connection, deadlock_s + GRACE_S)
                    began = time.monotonic()  # no client has waited until here
                    with connection.transaction() as whole:
                        connection.execute(f"SET LOCAL lock_timeout = {lock_ms}")
                        result = step(connection, Locking(LOCKING_SHARE * deadlock_s))
                        if result is False:
                            raise psycopg.Rollback(whole)
                    return result, max(longest, time.monotonic() - began)
                except (
                    TryAgain,
                    psycopg.errors.LockNotAvailable,
                    psycopg.errors.DeadlockDetected,
                ) as found:
                    if began is not None:
                        longest = max(longest, time.monotonic() - began)
                    if time.monotonic() > until:
                        reason = (
                            f"Other transactions hold the table for more than "
                            f"{LOCK_PATIENCE_S:.0f} s. End them, and try again."
                        )
                        if isinstance(found, TryAgain) and found.after_s is not None:
                            reason = (
                                f"The server answers too slowly: {found.after_s:.2f} s after its "
                                "first lock, the step still lacked another, and it must have all "
                                f"within {LOCKING_SHARE * deadlock_s:g} s. Run the service nearer "
                                "to the server, or raise deadlock_timeout of the server."
                            )
                        error = StoreUnavailable(reason)
                        error.is_unchanged = action in WHOLE_STEPS
                        raise error from None
                time.sleep(random.uniform(0.05, 0.3))  # noqa: S311 (no secret)

    def _stop_autovacuum(self, connection: StoreConnection, within_s: float) -> None:
        """Wait for autovacuums of both tables.

        The server cancels an autovacuum once somebody has waited deadlock_timeout for its lock. An
        autovacuum of a table with an HNSW index takes minutes. Clients do not wait meanwhile: SHARE
        UPDATE EXCLUSIVE conflicts with none of their statements. Whoever waits that long must hold
        no other lock, so each table has a transaction. Missing tables and rights are for the next
        step to name, or, to abandon, no obstacle.
        """
        lacking = (StoreChanged, StoreRefused, StoreUnsupported)
        with suppress(*lacking, psycopg.errors.InsufficientPrivilege):
            layout = load_layout(connection, self.location)
            for each in (layout.old, layout.new):
                if each is not None:
                    with connection.transaction():
                        connection.execute(f"SET LOCAL lock_timeout = '{within_s}s'")
                        table = each.relation.identifier
                        connection.run("LOCK TABLE {} IN SHARE UPDATE EXCLUSIVE MODE", table)

    def _load(self, connection: StoreConnection) -> tuple[PgLayout, PgState]:
        """Return the layout and the state. Raises StoreChanged if they differ from `prepare`'s."""
        layout = load_layout(connection, self.location)
        if layout.state is None:
            self._require_no_traces(connection)
            raise StoreChanged(
                "The table has no traces of this migration. Plan a new one.", field="collection"
            )
        state = require_same(layout, self.tag, self.dim)
        require_capture(connection, layout.seen, is_cut_over=state.is_cut_over)
        return layout, state

    def _require_no_traces(self, connection: StoreConnection) -> None:
        names = [name for _, name in traces_of(connection, self.location, self.tag)]
        if names:
            step = "`finish`" if name_of(self.tag, "old") in names else "`abandon`"
            raise StoreChanged(
                f"The state of the migration is missing: the table {name_of(self.tag, 'queue')} "
                "was dropped, its comment was changed, or its owner is not the table's. "
                "Writes of clients may be lost, or fail. "
                f"{step} the migration: it removes {', '.join(sorted(names))}."
            )

    def _save(self, connection: StoreConnection, layout: PgLayout, state: PgState) -> None:
        queue = sql.Identifier(layout.table.schema, state.queue)
        connection.run("COMMENT ON TABLE {} IS {}", queue, sql.Literal(state.text()))


def _deadlock_timeout(connection: StoreConnection) -> float:
    """Return how many seconds a session waits for a lock before it looks for a deadlock."""
    row = connection.execute(
        "SELECT extract(epoch FROM current_setting('deadlock_timeout')::interval)::float"
    ).fetchone()
    assert row is not None
    return float(row[0])
