"""A migration of some rows of a table: new vectors wait in a table of keys, and are exchanged.

Clients see the table that they know: a switch exchanges the vectors of the store's rows with those
of the second table, in one transaction. Other rows are neither read nor written.
"""

from __future__ import annotations

from dataclasses import replace
from typing import LiteralString

from psycopg import sql

from app.errors import StoreUnsupported
from app.stores.pgvector.connections import StoreConnection
from app.stores.pgvector.following import CAPTURED_ROWS, Follower, save_state
from app.stores.pgvector.locks import lock_all
from app.stores.pgvector.migration import PgMigration
from app.stores.pgvector.second_table import create_keys, require_size
from app.stores.pgvector.tables import PgLayout, PgTable
from app.stores.port import TranslateRows

#: indexes that hold vectors of one size, and triggers with the statement that enables them again
_SIZED: LiteralString = """
SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
JOIN pg_attribute x ON x.attrelid = c.oid AND x.atttypmod > 0
JOIN pg_type y ON y.oid = x.atttypid AND y.typname IN ('vector', 'halfvec', 'bit')
WHERE i.indrelid = %s LIMIT 1"""
_TRIGGERS: LiteralString = """
SELECT format('ALTER TABLE %%s DISABLE TRIGGER %%I', tgrelid::regclass, tgname),
  format('ALTER TABLE %%s %%s TRIGGER %%I', tgrelid::regclass, CASE tgenabled
    WHEN 'R' THEN 'ENABLE REPLICA' WHEN 'A' THEN 'ENABLE ALWAYS' ELSE 'ENABLE' END, tgname)
FROM pg_trigger WHERE tgrelid = %s AND NOT tgisinternal AND tgenabled <> 'D'"""


def require_room(layout: PgLayout, dim: int) -> None:
    """Raises StoreUnsupported where the column, or an index, cannot have vectors of this size."""
    seen = layout.seen
    if seen.dim not in (None, dim):
        raise StoreUnsupported(
            f"The column `{seen.vectors.name}` declares {seen.dim} dimensions for all rows of the "
            f"table, and the target has {dim}. Choose a target of {seen.dim}; or let the column "
            "declare none (ALTER TABLE ... ALTER ... TYPE vector); or move the whole table, "
            "without `where`.",
            field="options",
        )
    sized = layout.connection.execute(_SIZED, [seen.oid]).fetchone()
    if sized is not None and seen.dim is None:
        raise StoreUnsupported(
            f"The index {sized[0]!r} holds vectors of one size. Drop it for the migration, and "
            "create it again for the new size after the cutover.",
            field="collection",
        )


class PgFilteredMigration(PgMigration):
    """New vectors of a store with the option `where`."""

    def _create_second(self, layout: PgLayout) -> None:
        require_room(layout, self.dim)
        create_keys(layout.seen, self.tag)

    def copy_indexes(self) -> None:
        """Create none: the second table has only keys and vectors."""

    def _has_vector(self, new: PgTable) -> sql.Composable:
        return sql.SQL("{} IS NOT NULL").format(sql.Identifier(new.vectors.name))

    def _exchange(
        self, translate: TranslateRows, to_new: bool, connection: StoreConnection
    ) -> bool:
        """Exchange the vectors. Clients can read meanwhile, and writes of any row wait."""
        layout = self._load(connection)
        if layout.state.is_cut_over == to_new:
            return True
        seen, other = layout.seen, layout.other
        lock = "LOCK TABLE ONLY {} IN SHARE ROW EXCLUSIVE MODE"
        lock_all(connection, [lock.format(seen.identifier.as_string(connection))])
        layout = self._load(connection)  # nothing can change it from here on
        if layout.files() != layout.state.files:
            return False
        follower = Follower(layout)
        changes = follower.read_changes(CAPTURED_ROWS + 1)
        if len(changes.token) > CAPTURED_ROWS:
            return False
        if len(changes) and not follower.apply(changes, translate(changes.ids, changes.vectors)):
            return False
        connection.execute("SET LOCAL statement_timeout = 0")
        triggers = connection.execute(_TRIGGERS, [seen.oid]).fetchall()
        for disable, _ in triggers:
            connection.execute(disable.encode())
        follower.exchange()
        for _, enable in triggers:
            connection.execute(enable.encode())
        require_size(seen, self.tag, self.dim if to_new else seen.read_dim(of_empty=0))
        after = replace(layout.state, phase="cut-over" if to_new else "rolled-back")
        hidden = replace(other, name=after.hidden)
        connection.run("ALTER TABLE {} RENAME TO {}", other.identifier, hidden.name)
        save_state(replace(layout, hidden=hidden), after)
        return True
