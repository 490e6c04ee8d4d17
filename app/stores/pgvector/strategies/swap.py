"""Strategy `swap`: a full second table, which has the name of the first after a cutover."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

from app.errors import StoreChanged, StoreUnavailable
from app.stores.pgvector.capture import drop_queue, start_capture, stop_capture
from app.stores.pgvector.connections import StoreConnection, key_type, zero_vector
from app.stores.pgvector.facts import (
    create_views,
    dependent_views,
    drop_views,
    require_phase,
    require_same,
)
from app.stores.pgvector.layout import (
    PgLayout,
    PgRelation,
    PgState,
    PgVectors,
    load_layout,
    load_relation,
    name_of,
    relation_named,
)
from app.stores.pgvector.strategies.attachments import (
    build_twins,
    copy_rights,
    exchange_names,
    give,
    move_sequences,
    take,
    validate,
)
from app.stores.pgvector.strategies.steps import PgBeside

#: how often rows are written again when a unique value has moved to another row meanwhile
WRITE_ATTEMPTS = 5


class SwapTable(PgBeside):
    """A copy of the table with new vectors.

    Captured changes of all columns are repeated in it as whole rows, and after a cutover in the
    old table. So at each time, rows of the other table without an entry in the queue are right.
    """

    strategy = "swap"
    whole_rows = True

    def _create(self, connection: StoreConnection, layout: PgLayout, state: PgState) -> None:
        front, column = layout.table, layout.old.column
        row = connection.execute(
            "SELECT coalesce(c.reloptions, '{}')::text[], t.spcname FROM pg_class c "
            "LEFT JOIN pg_tablespace t ON t.oid = c.reltablespace WHERE c.oid = %s",
            [front.oid],
        ).fetchone()
        assert row is not None
        options, space = row
        new = sql.Identifier(front.schema, state.new)
        connection.run(
            "CREATE {} TABLE {} (LIKE {} INCLUDING ALL EXCLUDING INDEXES EXCLUDING STATISTICS){}{}",
            sql.SQL("UNLOGGED" if front.persistence == "u" else ""),
            new,
            front.identifier,
            sql.SQL(f" WITH ({', '.join(options)})" if options else ""),
            sql.SQL(" TABLESPACE {}").format(sql.Identifier(space)) if space else sql.SQL(""),
        )
        connection.run(
            "ALTER TABLE {} ALTER COLUMN {} TYPE {}({})",
            new,
            column,
            sql.Identifier(connection.extension, state.type_name),
            sql.SQL(str(self.dim)),
        )
        connection.run("ALTER TABLE {} OWNER TO {}", new, front.owner)
        back = relation_named(connection, front.schema, state.new)
        build_twins(
            connection, self.tag, front, back, state.type_name, layout.key.name, lambda: None
        )

    # --- rows -------------------------------------------------------------------------------------

    def _store(
        self, connection: StoreConnection, layout: PgLayout, incoming: sql.Identifier, replace: bool
    ) -> None:
        join = sql.SQL("JOIN {} i ON i.key = r.{}").format(
            incoming, sql.Identifier(layout.key.name)
        )
        self._write_rows(connection, layout, sql.SQL("i.vector").format(), join, [], replace)

    def _store_back(
        self,
        connection: StoreConnection,
        layout: PgLayout,
        incoming: sql.Identifier,
        numbers: list[int],
    ) -> None:
        state, old = layout.state, layout.old
        assert state is not None
        # A change of other columns must not replace the old vector by one translated back.
        vector = sql.SQL(
            "coalesce((SELECT o.{column} FROM {old} o WHERE o.{key} = i.key AND EXISTS (SELECT "
            "FROM {queue} q WHERE q.key = i.key AND q.seq = ANY(%s) "
            "HAVING bool_and(q.rows_only))), i.vector)"
        ).format(
            column=sql.Identifier(old.column),
            old=old.relation.identifier,
            key=sql.Identifier(old.key),
            queue=sql.Identifier(old.relation.schema, state.queue),
        )
        join = sql.SQL("JOIN {} i ON i.key = r.{}").format(
            incoming, sql.Identifier(layout.key.name)
        )
        self._write_rows(connection, layout, vector, join, [numbers], replace=True)

    def _forget(
        self, connection: StoreConnection, layout: PgLayout, gone: list[Any], truncated: bool
    ) -> None:
        other = self._other(layout)
        names = {
            "other": other.relation.identifier,
            "key": sql.Identifier(other.key),
            "seen": layout.seen.relation.identifier,
            "type": key_type(layout.kind),
            "column": sql.Identifier(other.column),
        }
        if truncated:
            connection.run(
                "DELETE FROM {other} o WHERE NOT EXISTS "
                "(SELECT FROM {seen} s WHERE s.{key} = o.{key})",
                **names,
            )
        connection.run(
            "DELETE FROM {other} o WHERE o.{key} = ANY(%s::{type}[])", params=[gone], **names
        )
        # Rows that exist, and have no vector that can be translated, stay visible.
        tail = sql.SQL("WHERE r.{key} = ANY(%s::{type}[])").format(**names)
        self._write_rows(connection, layout, self._empty(connection, other), tail, [gone], False)

    def _empty(self, connection: StoreConnection, other: PgVectors) -> sql.Composable:
        """The vector of rows without one: NULL, or zeros where the column must not be NULL."""
        if not other.relation.column(other.column).not_null:
            return sql.SQL("NULL").format()
        return zero_vector(connection.extension, other.type_name, other.dim)

    def _write_rows(
        self,
        connection: StoreConnection,
        layout: PgLayout,
        vector: sql.Composable,
        tail: sql.Composable,
        values: list[Any],
        replace: bool,
    ) -> None:
        """Copy rows `r` that clients see to the other table, each with `vector`."""
        other, seen = self._other(layout), layout.seen.relation
        names = {each.name for each in seen.columns} - {other.column}
        columns = [e for e in other.relation.columns if e.name in names and not e.generated]
        listed = [sql.Identifier(each.name) for each in columns]
        changed = [each.name for each in columns if each.identity != "a"] + [other.column]
        update = sql.SQL(", ").join(
            sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(each)) for each in changed
        )
        statement = sql.SQL(
            "INSERT INTO {other} ({columns}, {column}) OVERRIDING SYSTEM VALUE "
            "SELECT {rows}, {vector} FROM {seen} r {tail} ON CONFLICT ({key}) DO {conflict}"
        ).format(
            other=other.relation.identifier,
            columns=sql.SQL(", ").join(listed),
            column=sql.Identifier(other.column),
            rows=sql.SQL(", ").join(sql.Identifier("r", each.name) for each in columns),
            vector=vector,
            seen=seen.identifier,
            tail=tail,
            key=sql.Identifier(other.key),
            conflict=sql.SQL("UPDATE SET {}").format(update) if replace else sql.SQL("NOTHING"),
        )
        for _ in range(WRITE_ATTEMPTS):
            try:
                with connection.transaction():
                    connection.execute(statement, values)
                return
            except psycopg.errors.UniqueViolation:
                self._drop_waiting(connection, layout)
        raise StoreUnavailable(
            "Clients move unique values between rows faster than they can be copied. Try again."
        )

    def _drop_waiting(self, connection: StoreConnection, layout: PgLayout) -> None:
        """Delete rows of the other table with an entry in the queue: `apply` brings them back."""
        other, state = self._other(layout), layout.state
        assert state is not None
        connection.run(
            "DELETE FROM {} o USING {} q WHERE q.key = o.{}",
            other.relation.identifier,
            sql.Identifier(other.relation.schema, state.queue),
            other.key,
        )

    def _other(self, layout: PgLayout) -> PgVectors:
        state = layout.state
        return layout.old if state is not None and state.is_cut_over else layout.vectors("new")

    # --- switches ---------------------------------------------------------------------------------

    def build_index(self) -> None:
        with self.connections.use("to build the indexes", long=True) as connection:
            layout, _ = self._load(connection)
            other = self._other(layout)
            build_twins(
                connection,
                self.tag,
                layout.seen.relation,
                other.relation,
                other.type_name,
                None,
                lambda: self._drop_waiting(connection, layout),
            )
            connection.run("ANALYZE {}", other.relation.identifier)

    def _before_switch(self, layout: PgLayout) -> None:
        self._require_columns(layout)
        with self.connections.transaction("to copy rows without vectors", long=True) as connection:
            other = self._other(layout)
            tail = sql.SQL("WHERE NOT EXISTS (SELECT FROM {} o WHERE o.{} = r.{})").format(
                other.relation.identifier,
                sql.Identifier(other.key),
                sql.Identifier(layout.key.name),
            )
            empty = self._empty(connection, other)
            self._write_rows(connection, layout, empty, tail, [], replace=False)
        self.build_index()

    def _before_switch_back(self) -> None:
        with self.connections.use("to check the table") as connection:
            layout, state = self._load(connection)
            validate(connection, state.details.get("validate", ()))
        self._require_columns(layout)
        self.build_index()

    def _require_columns(self, layout: PgLayout) -> None:
        forms = [
            {(each.name, each.type_text) for each in table.columns if each.name != column}
            for table, column in (
                (layout.old.relation, layout.old.column),
                (layout.vectors("new").relation, layout.old.column),
            )
        ]
        different = sorted({name for name, _ in forms[0] ^ forms[1]})
        if different:
            raise StoreChanged(
                f"The columns {', '.join(different)} differ between the old and the new table, "
                f"because {layout.table.name!r} was altered. Alter the other table, "
                f"{self._other(layout).relation.name!r}, too, or undo the change."
            )

    def _switch(self, connection: StoreConnection, layout: PgLayout) -> None:
        self._exchange(connection, layout, "cut-over", name_of(self.tag, "old"))

    def _switch_back(self, connection: StoreConnection, layout: PgLayout) -> None:
        assert layout.state is not None
        self._exchange(connection, layout, "rolled-back", layout.state.new)

    def _exchange(
        self, connection: StoreConnection, layout: PgLayout, phase: str, hidden: str
    ) -> None:
        """Give the name, and all that belongs to it, to the table that clients do not see."""
        self._require_columns(layout)
        front, other, state = layout.seen.relation, self._other(layout), layout.state
        assert state is not None
        back = other.relation
        views = dependent_views(connection, front.oid)
        drop_views(connection, views)
        belongings = take(connection, front)
        for table, name in ((front, hidden), (back, front.name)):
            connection.run("ALTER TABLE {} RENAME TO {}", table.identifier, name)
        now = load_relation(connection, back.oid)
        exchange_names(connection, self.tag, load_relation(connection, front.oid), now)
        copy_rights(connection, front, now)
        move_sequences(connection, self.tag, front, back, now)
        give(connection, belongings)
        create_views(connection, views)
        start_capture(
            connection,
            self.tag,
            PgVectors(now, other.key, other.column, other.type_name, other.dim),
            whole_rows=True,
        )
        old = hidden if phase == "cut-over" else front.name
        keys: list[Any] = [list(each) for each in belongings.foreign_keys]
        # A switch that was killed may have left some to validate.
        keys += [each for each in state.details.get("validate", ()) if each not in keys]
        self._save(connection, layout, state.moved(phase, old=old, rows=front.name, validate=keys))

    def _after_switch(self) -> None:
        with self.connections.use("to validate foreign keys", long=True) as connection:
            _, state = self._load(connection)
            validate(connection, state.details.get("validate", ()))

    def _after_switch_back(self) -> None:
        self._after_switch()

    def finish(self) -> None:
        with self.connections.use("to check the table") as connection:
            layout = load_layout(connection, self.location)
        if layout.state is None:
            return
        self._after_switch()

        def step(connection: StoreConnection) -> None:
            layout = load_layout(connection, self.location)
            if layout.state is None:
                return
            state = require_same(layout, self.tag, self.strategy, self.dim)
            require_phase(state, cut_over=True, action="finish")
            stop_capture(connection, layout.seen)
            drop_queue(connection, state, layout.table.schema)
            self._drop_old(connection, layout.old.relation)

        self._with_lock("to finish", step)

    def _drop_old(self, connection: StoreConnection, old: PgRelation) -> None:
        connection.run("DROP TABLE {}", old.identifier)
