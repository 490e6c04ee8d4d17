"""The steps of a migration: a second table is filled, and takes the name of the first.

Captured changes are repeated in the second table as whole rows, and after a cutover in the old one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
from psycopg import sql

from app.errors import StoreChanged, StoreRefused, StoreUnavailable, StoreUnsupported, WrongState
from app.stores.pgvector import reading
from app.stores.pgvector.attachments import (
    attach,
    detach,
    name_not_null,
    require_same_definitions,
    validate_keys,
)
from app.stores.pgvector.capture import (
    create_queue,
    read_changes,
    require_capture,
    start_capture,
    stop_capture,
)
from app.stores.pgvector.connections import PgConnections, StoreConnection
from app.stores.pgvector.copying import (
    apply_changes,
    copy_missing,
    create_copy,
    requeue_different,
    table_files,
    write_new,
)
from app.stores.pgvector.facts import (
    first_state,
    require_no_obstacles,
    require_rights,
    require_same,
)
from app.stores.pgvector.indexes import (
    copy_indexes,
    copy_key_index,
    exchange_index_names,
    has_same_indexes,
)
from app.stores.pgvector.layout import (
    PgLayout,
    PgState,
    load_layout,
    load_relation,
    name_of,
    states_of,
    traces_of,
)
from app.stores.pgvector.locks import lock_all, locks_of_removal, locks_of_switch, run_locked
from app.stores.pgvector.values import zero_vector
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

#: captured writes of one transaction, which locks their rows, and how long such transactions may
#: follow each other until few are left
CAPTURED_ROWS, DRAIN_PATIENCE_S = 100, 300.0

#: most rows to translate while clients wait: as many as take this long, between these limits
REMAINDER_S, REMAINDER_ROWS = 0.1, (32, 400)


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
        run_locked(self.connections, self.location, "to prepare the migration", self._create)

    def _create(self, connection: StoreConnection) -> None:
        table = load_layout(connection, self.location).table
        connection.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended('anchorage', %s))", [table.oid]
        )
        layout = load_layout(connection, self.location)  # as another process left it
        if layout.state is None:
            self._require_no_traces(connection)
            require_rights(connection, layout)
            require_no_obstacles(connection, layout)
            state = first_state(connection, layout, self.location, self.tag, self.dim)
            create_copy(connection, layout, state)
            create_queue(connection, state, layout.seen)
            start_capture(connection, self.tag, layout.seen)
            self._save(connection, table.schema, state)
            copy_key_index(connection, load_layout(connection, self.location), self.tag)
        self._load(connection)

    def write(
        self, ids: Sequence[StoreId], vectors: StoreVectors, *, replace: bool = False
    ) -> None:
        if not len(ids):
            return
        with self.connections.transaction("to write new vectors", long=True) as connection:
            write_new(connection, *self._load(connection), ids, vectors, replace=replace)

    def count(self) -> int:
        with self.connections.use("to count new vectors", long=True) as connection:
            layout = load_layout(connection, self.location)
            if layout.state is None:
                return 0
            new = layout.vectors("new")
            [(count,)] = connection.run(
                "SELECT count(*) FROM {} WHERE {} OPERATOR({}.<>) {}",
                new.relation.identifier,
                new.column,
                connection.extension,
                zero_vector(connection.extension, new.type_name, self.dim),
            ).fetchall()
            return int(count)

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
            return read_changes(connection, layout.state, layout.seen, limit)

    def apply(self, changes: Changes, vectors: StoreVectors) -> None:
        with self.connections.transaction("to apply captured writes", long=True) as connection:
            apply_changes(connection, *self._load(connection), changes, vectors)

    def cutover(self, translate: TranslateRows) -> Switch:
        return self._switch("to cut over", translate, to_new=True)

    def rollback(self, translate_back: TranslateRows) -> Switch:
        return self._switch("to roll back", translate_back, to_new=False)

    def finish(self) -> None:
        self._remove(cut_over=True)

    def abandon(self) -> None:
        self._remove(cut_over=False)

    def read(self, ids: Sequence[StoreId]) -> Page:
        with self.connections.use("to fetch rows") as connection:
            layout = load_layout(connection, self.location)
            return reading.fetch(connection, layout.vectors("new"), ids)

    def requeue_different(self) -> int | None:
        return self._compare(always=True)

    # --- parts ------------------------------------------------------------------------------------

    def _load(self, connection: StoreConnection) -> tuple[PgLayout, PgState]:
        """Return the layout and the state. Raises StoreChanged if they differ from `prepare`'s."""
        layout = load_layout(connection, self.location)
        if layout.state is None:
            self._require_no_traces(connection)
            raise StoreChanged(
                "The table has no traces of this migration. Plan a new one.", field="collection"
            )
        state = require_same(layout, self.tag, self.dim)
        require_capture(connection, layout, state)
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

    def _save(self, connection: StoreConnection, schema: str, state: PgState) -> None:
        queue = sql.Identifier(schema, state.queue)
        connection.run("COMMENT ON TABLE {} IS {}", queue, sql.Literal(state.text()))

    def _require_same_tables(self, connection: StoreConnection, layout: PgLayout) -> None:
        """Raises StoreChanged and StoreUnsupported for what a switch would undo or not move."""
        require_same_definitions(connection, layout)
        require_no_obstacles(connection, layout)

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
            if layout.state is not None and layout.state.phase != "prepared":
                validate_keys(connection, layout.table)

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
            count = requeue_different(connection, layout, state)
            if count == 0:
                self._save(connection, layout.table.schema, replace(state, files=files))
            return count

    def _copy_indexes(self) -> None:
        with self.connections.use("to build the indexes", long=True) as connection:
            copy_indexes(connection, *self._load(connection))

    def _switch(self, action: str, translate: TranslateRows, *, to_new: bool) -> Switch:
        self._validate()
        with self.connections.transaction("to check the table", long=True) as connection:
            layout, state = self._load(connection)
            if state.is_cut_over == to_new:
                return Switch(0.0)
            self._require_same_tables(connection, layout)
            copy_missing(connection, layout, state)
        self.build_index()
        pause = self._flip(action, translate, to_new=to_new)
        self._validate()
        return pause

    def _flip(self, action: str, translate: TranslateRows, *, to_new: bool) -> Switch:
        longest, until = 0.0, time.monotonic() + DRAIN_PATIENCE_S
        while time.monotonic() < until:
            self._copy_indexes()
            most = self._drain(translate, until)
            if self._compare(always=False) != 0:
                continue
            step = partial(self._exchange, translate, most, to_new)
            done, pause = run_locked(self.connections, self.location, action, step)
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

    def _exchange(
        self, translate: TranslateRows, most: int, to_new: bool, connection: StoreConnection
    ) -> bool:
        """Give the name, and all that belongs to it, to the table that clients do not see.

        most  how many captured rows to translate meanwhile
        Returns False if something must be copied first.
        """
        layout, state = self._load(connection)
        if state.is_cut_over == to_new:
            return True
        locks = locks_of_switch(connection, layout)
        lock_all(connection, locks)
        layout, state = self._load(connection)  # nothing can change it from here on
        # A view or a foreign key may have come meanwhile.
        is_same = locks_of_switch(connection, layout) == locks
        is_same = is_same and has_same_indexes(connection, layout, self.tag)
        if not is_same or table_files(connection, layout) != state.files:
            return False
        changes = read_changes(connection, state, layout.seen, most + 1)
        if len(changes.token) > most:
            return False
        self._require_same_tables(connection, layout)
        stop_capture(connection, layout.seen)
        attachments = detach(connection, layout.table)
        if len(changes):  # it may take long: no other table must be locked after it
            vectors = translate(changes.ids, changes.vectors)
            if not apply_changes(connection, layout, state, changes, vectors):
                return False
        front, other = layout.table, layout.other
        after = replace(state, phase="rolled-back" if state.is_cut_over else "cut-over")
        for table, name in ((front, after.hidden), (other.relation, front.name)):
            connection.run("ALTER TABLE {} RENAME TO {}", table.identifier, name)
        now = load_relation(connection, other.relation.oid)
        hidden = load_relation(connection, front.oid)
        exchange_index_names(connection, self.tag, hidden)
        name_not_null(connection, hidden, now)
        attach(connection, now.identifier, attachments)
        start_capture(connection, self.tag, replace(other, relation=now))
        self._save(connection, front.schema, after)
        return True
