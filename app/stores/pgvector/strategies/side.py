"""Strategy `side`: new vectors in a table next to the rows, and after a cutover a view of both."""

from __future__ import annotations

from typing import Any

from psycopg import sql

from app.stores.pgvector.capture import (
    drop_queue,
    start_capture,
    stop_capture,
    without_user_triggers,
)
from app.stores.pgvector.connections import StoreConnection, key_type, zero_vector
from app.stores.pgvector.facts import (
    create_views,
    dependent_views,
    drop_views,
    grants,
    require_phase,
    require_same,
)
from app.stores.pgvector.layout import (
    PgLayout,
    PgRelation,
    PgState,
    comment,
    load_layout,
    load_relation,
    mark_text,
    name_of,
    relation_named,
)
from app.stores.pgvector.strategies.steps import PgBeside
from app.stores.pgvector.strategies.view import JoinedView


class SideTable(PgBeside):
    """A table of keys and new vectors.

    A first reindexing finds the old vectors in the table itself, and renames it at the cutover.
    A later one finds the view that the first has left, and replaces it.
    """

    strategy = "side"

    def _create(self, connection: StoreConnection, layout: PgLayout, state: PgState) -> None:
        new = sql.Identifier(layout.table.schema, state.new)
        key, column = sql.Identifier(layout.key.name), sql.Identifier(layout.old.column)
        rows, owner = layout.rows, sql.Identifier(layout.rows.owner)
        connection.run(
            "CREATE {} TABLE {} ({} {} PRIMARY KEY, {} {}({}){})",
            sql.SQL("UNLOGGED" if rows.persistence == "u" else ""),
            new,
            key,
            key_type(layout.kind),
            column,
            sql.Identifier(connection.extension, state.type_name),
            sql.SQL(str(self.dim)),
            sql.SQL(" NOT NULL" if state.details["not_null"] else ""),
        )
        connection.run("ALTER TABLE {} OWNER TO {}", new, owner)
        for statement in grants(connection, rows.oid, new):
            connection.execute(statement)
        if rows.row_security:
            for template in (
                "ALTER TABLE {new} ENABLE ROW LEVEL SECURITY",
                "CREATE POLICY anchorage_rows ON {new} USING (EXISTS (SELECT FROM {rows} r "
                "WHERE r.{key} = {new}.{key}))",
            ):
                connection.run(template, new=new, rows=rows.identifier, key=key)

    def _store(
        self, connection: StoreConnection, layout: PgLayout, incoming: sql.Identifier, replace: bool
    ) -> None:
        new = layout.vectors("new")
        connection.run(
            "INSERT INTO {new} ({key}, {column}) SELECT i.key, i.vector FROM {incoming} i "
            "WHERE EXISTS (SELECT FROM {rows} r WHERE r.{key} = i.key) ORDER BY i.key "
            "ON CONFLICT ({key}) DO {conflict}",
            new=new.relation.identifier,
            key=new.key,
            column=new.column,
            incoming=incoming,
            rows=layout.rows.identifier,
            conflict=sql.SQL("UPDATE SET {0} = EXCLUDED.{0}").format(sql.Identifier(new.column))
            if replace
            else sql.SQL("NOTHING"),
        )

    def _store_back(
        self,
        connection: StoreConnection,
        layout: PgLayout,
        incoming: sql.Identifier,
        numbers: list[int],
    ) -> None:
        old = layout.old
        values = {
            "old": old.relation.identifier,
            "key": sql.Identifier(old.key),
            "column": sql.Identifier(old.column),
            "incoming": incoming,
        }
        if old.relation.oid != layout.rows.oid:
            connection.run(
                "INSERT INTO {old} ({key}, {column}) SELECT key, vector FROM {incoming} "
                "ON CONFLICT ({key}) DO UPDATE SET {column} = EXCLUDED.{column}",
                **values,
            )
            return
        with without_user_triggers(connection, old.relation):
            connection.run(
                "UPDATE {old} o SET {column} = i.vector FROM {incoming} i WHERE o.{key} = i.key",
                **values,
            )

    def _forget(
        self, connection: StoreConnection, layout: PgLayout, gone: list[Any], truncated: bool
    ) -> None:
        state = layout.state
        assert state is not None
        other = layout.old if state.is_cut_over else layout.vectors("new")
        rows, seen = layout.rows.identifier, layout.seen
        keys = {
            "other": other.relation.identifier,
            "key": sql.Identifier(other.key),
            "column": sql.Identifier(other.column),
            "type": key_type(layout.kind),
            "rows": rows,
            "seen": seen.relation.identifier,
        }
        if other.relation.oid == layout.rows.oid:
            if not state.details["not_null"]:
                with without_user_triggers(connection, other.relation):
                    connection.run(
                        "UPDATE {other} o SET {column} = NULL WHERE o.{key} = "
                        "ANY(%s::{type}[]) AND EXISTS (SELECT FROM {seen} s "
                        "WHERE s.{key} = o.{key} AND s.{column} IS NULL)",
                        params=[gone],
                        **keys,
                    )
            return
        if truncated:
            connection.run(
                "DELETE FROM {other} o WHERE NOT EXISTS "
                "(SELECT FROM {rows} r WHERE r.{key} = o.{key})",
                **keys,
            )
        connection.run(
            "DELETE FROM {other} o WHERE o.{key} = ANY(%s::{type}[])", params=[gone], **keys
        )
        if not state.details["not_null"]:
            connection.run(
                "INSERT INTO {other} ({key}, {column}) SELECT s.{key}, NULL FROM {seen} s "
                "WHERE s.{key} = ANY(%s::{type}[]) AND s.{column} IS NULL "
                "ON CONFLICT ({key}) DO NOTHING",
                params=[gone],
                **keys,
            )

    def _before_switch(self, layout: PgLayout) -> None:
        """Give each row without a new vector its row in the new table: the view joins both.

        Its vector is NULL; zero where the column must not be NULL.
        """
        state = layout.state
        if state is None:
            return
        with self.connections.use("to add rows without vectors", long=True) as connection:
            values: dict[str, sql.Composable] = {
                "new": layout.vectors("new").relation.identifier,
                "old": layout.old.relation.identifier,
                "key": sql.Identifier(layout.key.name),
                "column": sql.Identifier(layout.old.column),
                "empty": sql.SQL("NULL"),
            }
            if state.details["not_null"]:
                values["empty"] = zero_vector(connection.extension, state.type_name, self.dim)
            connection.run(
                "INSERT INTO {new} ({key}, {column}) SELECT o.{key}, {empty} FROM {old} o "
                "WHERE NOT EXISTS (SELECT FROM {new} n WHERE n.{key} = o.{key}) "
                "ON CONFLICT ({key}) DO NOTHING",
                **values,
            )

    def _switch(self, connection: StoreConnection, layout: PgLayout) -> None:
        state, schema, name = layout.state, layout.table.schema, layout.table.name
        assert state is not None
        order = tuple(each.name for each in layout.table.columns)
        views = dependent_views(connection, layout.table.oid)
        drop_views(connection, views)
        rows_name = state.details["rows"]
        if layout.is_view:
            self._last_view(state, schema, order).drop(connection)
        else:
            rows_name = name_of(self.tag, "rows")
            for statement in (
                "ALTER TABLE {table} ALTER COLUMN {column} DROP NOT NULL",
                "ALTER TABLE {table} RENAME TO {rows}",
            ):
                connection.run(
                    statement,
                    table=layout.table.identifier,
                    column=layout.old.column,
                    rows=rows_name,
                )
        old_name = rows_name if not layout.is_view else state.details["old"]
        state = state.moved("cut-over", rows=rows_name, old=old_name)
        rows = relation_named(connection, schema, rows_name)
        view = self._view(state, schema, name, order)
        view.create(connection, rows)
        create_views(connection, views)
        start_capture(connection, self.tag, layout.vectors("new"))
        self._save(connection, layout, state)

    def _switch_back(self, connection: StoreConnection, layout: PgLayout) -> None:
        state, schema, name = layout.state, layout.table.schema, layout.table.name
        assert state is not None
        order = tuple(each.name for each in layout.table.columns)
        views = dependent_views(connection, layout.table.oid)
        drop_views(connection, views)
        self._view(state, schema, name, order).drop(connection)
        if state.details["old"] == state.details["rows"]:
            for statement in self._rename_back(layout, state):
                connection.execute(statement)
            state = state.moved("rolled-back", rows=name, old=name)
        else:
            state = state.moved("rolled-back")
            self._last_view(state, schema, order).create(connection, layout.rows)
        create_views(connection, views)
        self._save(connection, layout, state)
        old = load_layout(connection, self.location).old
        start_capture(connection, self.tag, old)

    def _rename_back(self, layout: PgLayout, state: PgState) -> list[sql.Composed]:
        values = {
            "rows": layout.rows.identifier,
            "name": sql.Identifier(layout.table.name),
            "check": sql.Identifier(name_of(self.tag, "not_null")),
            "column": sql.Identifier(layout.old.column),
        }
        statements = []
        if state.details["not_null"]:  # SET NOT NULL would read the whole table under the lock
            statements.append(
                "ALTER TABLE {rows} ADD CONSTRAINT {check} CHECK ({column} IS NOT NULL) NOT VALID"
            )
        statements.append("ALTER TABLE {rows} RENAME TO {name}")
        return [sql.SQL(each).format(**values) for each in statements]

    def _after_switch_back(self) -> None:
        """Restore NOT NULL of the old vectors: a valid check makes it immediate."""
        with self.connections.use("to restore NOT NULL", long=True) as connection:
            layout, state = self._load(connection)
            if state.is_cut_over or layout.is_view or not state.details["not_null"]:
                return
            if layout.old.relation.column(layout.old.column).not_null:
                return
            values = {
                "table": layout.table.identifier,
                "check": sql.Identifier(name_of(self.tag, "not_null")),
                "column": sql.Identifier(layout.old.column),
            }
            # A row without a direction was not translated back.
            empty = zero_vector(connection.extension, layout.old.type_name, layout.old.dim)
            with connection.transaction(), without_user_triggers(connection, layout.old.relation):
                connection.run(
                    "UPDATE {table} SET {column} = {empty} WHERE {column} IS NULL",
                    empty=empty,
                    **values,
                )
            connection.run("ALTER TABLE {table} VALIDATE CONSTRAINT {check}", **values)

        def step(connection: StoreConnection) -> None:
            for statement in (
                "ALTER TABLE {table} ALTER COLUMN {column} SET NOT NULL",
                "ALTER TABLE {table} DROP CONSTRAINT {check}",
            ):
                connection.run(statement, **values)

        self._with_lock("to restore NOT NULL", step)

    def finish(self) -> None:
        def step(connection: StoreConnection) -> None:
            layout = load_layout(connection, self.location)
            if layout.state is None:
                return
            state = require_same(layout, self.tag, self.strategy, self.dim)
            require_phase(state, cut_over=True, action="finish")
            self._finish(connection, layout, state)

        self._with_lock("to finish", step)

    def _finish(self, connection: StoreConnection, layout: PgLayout, state: PgState) -> None:
        schema, name = layout.table.schema, layout.table.name
        order = tuple(each.name for each in layout.table.columns)
        new = layout.vectors("new")
        views = dependent_views(connection, layout.table.oid)
        drop_views(connection, views)
        self._view(state, schema, name, order).drop(connection)
        stop_capture(connection, new)
        rows_name, vectors_name = state.details["rows"], f"{name}_vectors"
        old = layout.old
        if old.relation.oid == layout.rows.oid:
            connection.run("ALTER TABLE {} DROP COLUMN {}", old.relation.identifier, old.column)
            rows_name, vectors_name = free_names(connection, schema, name, self.tag)
            rename_tagged(connection, self.tag, layout.rows, rows_name)
        else:
            vectors_name = old.relation.name
            connection.run("DROP TABLE {}", old.relation.identifier)
        rename_tagged(connection, self.tag, new.relation, vectors_name)
        drop_queue(connection, state, schema)
        rows = relation_named(connection, schema, rows_name)
        last = JoinedView(
            schema, name, rows_name, vectors_name, old.key, old.column, rows_name, order
        )
        last.create(connection, rows)
        create_views(connection, views)
        remark = {
            "name": name,
            "rows": rows_name,
            "old": vectors_name,
            "key": old.key,
            "column": old.column,
        }
        connection.execute(comment(sql.Identifier(schema, vectors_name), mark_text(view=remark)))

    # --- names ------------------------------------------------------------------------------------

    def _view(self, state: PgState, schema: str, name: str, order: tuple[str, ...]) -> JoinedView:
        """The view during the reindexing."""
        details = state.details
        return JoinedView(
            schema,
            name,
            details["rows"],
            state.new,
            details["key"],
            details["column"],
            f"anchorage_{self.tag}",
            order,
        )

    def _last_view(self, state: PgState, schema: str, order: tuple[str, ...]) -> JoinedView:
        """The view that an earlier reindexing has left."""
        details = state.details
        return JoinedView(
            schema,
            state.table,
            details["rows"],
            details["old"],
            details["key"],
            details["column"],
            details["rows"],
            order,
        )


def free_names(connection: StoreConnection, schema: str, name: str, tag: str) -> tuple[str, str]:
    """Return names for the rows and the vectors that no relation of the schema has."""
    short = name.encode()[:48].decode(errors="ignore")
    for number in range(100):
        names = [f"{short}_{part}{number or ''}" for part in ("rows", "vectors")]
        row = connection.execute(
            "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relname = ANY(%s)",
            [schema, names],
        ).fetchone()
        if row is not None and not row[0]:
            return names[0], names[1]
    return name_of(tag, "rows"), name_of(tag, "vectors")


def rename_tagged(connection: StoreConnection, tag: str, table: PgRelation, name: str) -> None:
    """Rename a table, and its indexes and constraints whose names have the tag."""
    prefix = f"anchorage_{tag}"
    connection.run("ALTER TABLE {} RENAME TO {}", table.identifier, name)
    present = load_relation(connection, table.oid).identifier
    rows = connection.execute(
        "SELECT conname FROM pg_constraint WHERE conrelid = %s AND starts_with(conname, %s)",
        [table.oid, prefix],
    ).fetchall()
    for [each] in rows:
        new = sql.Identifier(name + each.removeprefix(prefix).removeprefix("_new"))
        connection.run("ALTER TABLE {} RENAME CONSTRAINT {} TO {}", present, each, new)
    rows = connection.execute(
        "SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
        "WHERE i.indrelid = %s AND starts_with(c.relname, %s)",
        [table.oid, prefix],
    ).fetchall()
    for [each] in rows:
        connection.run(
            "ALTER INDEX {} RENAME TO {}",
            sql.Identifier(table.schema, each),
            name + each.removeprefix(prefix),
        )
