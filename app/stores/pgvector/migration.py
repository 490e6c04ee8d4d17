"""The steps of a migration: a second table is filled, and takes the name of the first.

Captured changes are repeated in the second table as whole rows, and after a cutover in the old one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

import numpy as np
from psycopg import sql

from app.errors import StoreChanged, StoreRefused, StoreUnavailable, StoreUnsupported, WrongState
from app.stores.pgvector.checks import (
    new_type,
    require_no_obstacles,
    require_rights,
    require_same,
)
from app.stores.pgvector.connections import PgConnections, StoreConnection
from app.stores.pgvector.following import (
    Follower,
    create_queue,
    require_capture,
    start_capture,
    stop_capture,
)
from app.stores.pgvector.locks import lock_all, locks_of_removal, locks_of_switch, run_locked
from app.stores.pgvector.rows import fetch, zero_vector
from app.stores.pgvector.second_table import (
    copy_indexes,
    create_second,
    detach,
    exchange_index_names,
    has_same_indexes,
    require_same_definitions,
    validate_keys,
)
from app.stores.pgvector.tables import (
    PgLayout,
    PgState,
    load_layout,
    name_of,
    states_of,
    table_files,
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

#: captured writes of one transaction, which locks their rows; a switch translates at most as many
#: while clients wait. For how long such transactions may follow each other until few are left
CAPTURED_ROWS, DRAIN_PATIENCE_S = 100, 300.0


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
            require_rights(connection, layout)
            require_no_obstacles(connection, layout)
            type_name = new_type(connection, layout, self.location, self.dim)
            state = PgState(self.tag, "prepared", layout.seen.name)
            layout = replace(layout, moving=state)
            create_second(connection, layout.seen, self.tag, type_name, self.dim)
            create_queue(connection, layout)
            start_capture(connection, layout.seen, self.tag)
            _save(connection, layout, state)
        self._load(connection)

    def write(
        self, ids: Sequence[StoreId], vectors: StoreVectors, *, replace: bool = False
    ) -> None:
        if not len(ids):
            return
        with self._follow("to write new vectors") as follower:
            follower.write(ids, vectors, replace=replace)

    def read(self, ids: Sequence[StoreId]) -> Page:
        with self.connections.use("to fetch rows") as connection:
            return fetch(connection, load_layout(connection, self.location).table("new"), ids)

    def count(self) -> int:
        with self.connections.use("to count new vectors", long=True) as connection:
            layout = load_layout(connection, self.location)
            if layout.moving is None:
                return 0
            new = layout.table("new")
            [(count,)] = connection.run(
                "SELECT count(*) FROM {} WHERE {} OPERATOR({}.<>) {}",
                new.identifier,
                new.vectors.name,
                connection.extension,
                zero_vector(connection, new),
            ).fetchall()
            return int(count)

    def build_index(self) -> None:
        with self.connections.use("to build the indexes", long=True) as connection:
            layout = self._load(connection)
            copy_indexes(connection, layout)
            connection.run("ANALYZE {}", layout.other.identifier)

    def changes(self, limit: int) -> Changes:
        with self.connections.use("to read captured writes") as connection:
            layout = load_layout(connection, self.location)
            if layout.moving is None:
                return Changes([], np.zeros((0, self.dim), np.float32))
            return Follower(connection, layout).read_changes(min(limit, CAPTURED_ROWS))

    def apply(self, changes: Changes, vectors: StoreVectors) -> None:
        with self._follow("to apply captured writes") as follower:
            follower.apply(changes, vectors)

    def requeue_different(self, *, only_rewritten: bool = False) -> int | None:
        """Make rows wait for `apply` that differ between both tables, though no change waits.

        only_rewritten  only if PostgreSQL has rewritten a table since both were the same
        """
        with self._follow("to compare rows") as follower:
            connection, layout = follower.connection, follower.layout
            files = table_files(connection, layout)
            if only_rewritten and files == layout.state.files:
                return 0
            _require_same_tables(connection, layout)
            count = follower.queue_different()
            if count == 0:
                _save(connection, layout, replace(layout.state, files=files))
            return count

    def cutover(self, translate: TranslateRows) -> Switch:
        return self._switch("to cut over", translate, to_new=True)

    def rollback(self, translate_back: TranslateRows) -> Switch:
        return self._switch("to roll back", translate_back, to_new=False)

    def finish(self) -> None:
        self._remove(cut_over=True)

    def abandon(self) -> None:
        self._remove(cut_over=False)

    # --- parts ------------------------------------------------------------------------------------

    def _load(self, connection: StoreConnection) -> PgLayout:
        """Return the layout. Raises StoreChanged if it differs from that of `prepare`."""
        layout = load_layout(connection, self.location)
        if layout.moving is None:
            self._require_no_traces(connection)
        require_same(layout, self.tag, self.dim)
        require_capture(connection, layout)
        return layout

    @contextmanager
    def _follow(self, action: str) -> Iterator[Follower]:
        with self.connections.transaction(action, long=True) as connection:
            yield Follower(connection, self._load(connection))

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

    def _remove(self, *, cut_over: bool) -> None:
        """Drop the table that clients do not see, and all traces, by their names."""

        def step(connection: StoreConnection) -> None:
            found = traces_of(connection, self.location, self.tag)
            if not found:
                return
            schema, names = found[0][0], [name for _, name in found]
            lock_all(connection, locks_of_removal(connection, schema, self.tag))
            states = [each for _, each in states_of(connection, schema) if each.tag == self.tag]
            if states:
                is_old, is_new = not states[0].is_cut_over, states[0].is_cut_over
            else:
                is_old, is_new = (name_of(self.tag, each) in names for each in ("new", "old"))
            if is_old and cut_over:
                raise WrongState("The migration cannot finish: it is not cut over. Cut over first.")
            if is_new and not cut_over:
                raise WrongState(
                    "The migration cannot be abandoned: it is cut over. Roll back first, or finish."
                )
            for each in sorted(names):  # the function of the triggers is the first
                if each == name_of(self.tag, "capture"):
                    connection.run("DROP FUNCTION {}() CASCADE", sql.Identifier(schema, each))
                else:
                    connection.run("DROP TABLE {}", sql.Identifier(schema, each))

        self._validate()
        run_locked(self.connections, self.location, "to remove the migration", step)

    def _validate(self) -> None:
        """Validate the foreign keys that a switch, which may have been killed, has added."""
        with (
            suppress(StoreChanged, StoreRefused, StoreUnsupported),  # of a table without a switch
            self.connections.use("to validate foreign keys", long=True) as connection,
        ):
            layout = load_layout(connection, self.location)
            if layout.moving is not None and layout.moving.phase != "prepared":
                validate_keys(connection, layout.seen)

    def _switch(self, action: str, translate: TranslateRows, *, to_new: bool) -> Switch:
        self._validate()
        with self._follow("to check the table") as follower:
            if follower.layout.state.is_cut_over == to_new:
                return Switch(0.0)
            _require_same_tables(follower.connection, follower.layout)
            follower.copy_missing()
        self.build_index()
        longest, until = 0.0, time.monotonic() + DRAIN_PATIENCE_S
        while time.monotonic() < until:
            with self.connections.use("to build the indexes", long=True) as connection:
                copy_indexes(connection, self._load(connection))
            self._drain(translate, until)
            if self.requeue_different(only_rewritten=True) != 0:
                continue
            step = partial(self._exchange, translate, to_new)
            done, pause = run_locked(self.connections, self.location, action, step)
            longest = max(longest, pause)
            if done:
                self._validate()
                return Switch(longest)
        raise StoreUnavailable(
            f"For {DRAIN_PATIENCE_S:.0f} s, clients wrote faster than their writes can be "
            "translated, or altered the table. Try again when they write less."
        )

    def _drain(self, translate: TranslateRows, until: float) -> None:
        """Apply captured writes until few are left."""
        while time.monotonic() < until:
            changes = self.changes(CAPTURED_ROWS)
            self.apply(changes, translate(changes.ids, changes.vectors))
            if len(changes.token) <= CAPTURED_ROWS // 10:
                return

    def _exchange(
        self, translate: TranslateRows, to_new: bool, connection: StoreConnection
    ) -> bool:
        """Give the name, and all that belongs to it, to the table that clients do not see.

        Returns False if something must be copied first.
        """
        layout = self._load(connection)
        if layout.state.is_cut_over == to_new:
            return True
        locks = locks_of_switch(connection, layout)
        lock_all(connection, locks)
        layout = self._load(connection)  # nothing can change it from here on
        # A view or a foreign key may have come meanwhile.
        is_same = locks_of_switch(connection, layout) == locks
        is_same = is_same and has_same_indexes(connection, layout)
        if not is_same or table_files(connection, layout) != layout.state.files:
            return False
        follower = Follower(connection, layout)
        changes = follower.read_changes(CAPTURED_ROWS + 1)
        if len(changes.token) > CAPTURED_ROWS:
            return False
        _require_same_tables(connection, layout)
        stop_capture(connection, layout.seen)
        attachments = detach(connection, layout.seen)
        if len(changes):  # it may take long: no other table must be locked after it
            vectors = translate(changes.ids, changes.vectors)
            if not follower.apply(changes, vectors):
                return False
        after = replace(layout.state, phase="cut-over" if to_new else "rolled-back")
        now = replace(layout.other, name=layout.seen.name)
        hidden = replace(layout.seen, name=after.hidden)
        for table, name in ((layout.seen, hidden.name), (layout.other, now.name)):
            connection.run("ALTER TABLE {} RENAME TO {}", table.identifier, name)
        exchange_index_names(connection, self.tag, hidden)
        for each in attachments:
            connection.execute(each.encode())
        start_capture(connection, now, self.tag)
        _save(connection, layout, after)
        return True


def _save(connection: StoreConnection, layout: PgLayout, state: PgState) -> None:
    text = json.dumps({"anchorage": 1, "state": state.__dict__}, separators=(",", ":"))
    connection.run("COMMENT ON TABLE {} IS {}", layout.queue, sql.Literal(text))


def _require_same_tables(connection: StoreConnection, layout: PgLayout) -> None:
    """Raises StoreChanged and StoreUnsupported for what a switch would undo or not move."""
    require_same_definitions(connection, layout)
    require_no_obstacles(connection, layout)
