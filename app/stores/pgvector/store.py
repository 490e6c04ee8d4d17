"""A table of PostgreSQL with a column of vectors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from psycopg import sql

from app.errors import StoreUnsupported
from app.stores.answers import MAX_TEXT
from app.stores.pgvector.checks import find_obstacles
from app.stores.pgvector.connections import PgConnections, StoreConnection
from app.stores.pgvector.migration import PgMigration
from app.stores.pgvector.rows import dim_of, fetch, read_page, read_texts
from app.stores.pgvector.search import search
from app.stores.pgvector.tables import PgLayout, index_metric, load_layout
from app.stores.port import (
    Capabilities,
    Cursor,
    HearRows,
    Hits,
    Migration,
    Page,
    RowsChecksum,
    Search,
    Side,
    Store,
    StoreFacts,
    StoreId,
    StoreLocation,
)

#: below this number of rows a sample reads all keys
SMALL_TABLE = 20_000

#: rows that a checksum reads at once
ROWS_A_FETCH = 10_000

_DTYPES = {"vector": "float32", "halfvec": "float16"}


class PgvectorStore(Store):
    """One table. options: `ef_search`, `probes`, `iterative_scan` and `type`; see
    docs/explanation/decisions.md.
    """

    capabilities = Capabilities(
        captures_writes=True,
        atomic_cutover=True,
        filters=True,
    )

    def __init__(self, location: StoreLocation) -> None:
        self.location = location
        self.connections = PgConnections(location.url)

    @contextmanager
    def _open(
        self, action: str, *, long: bool = False
    ) -> Iterator[tuple[StoreConnection, PgLayout]]:
        with self.connections.use(action, long=long) as connection:
            yield connection, load_layout(connection, self.location)

    def facts(self) -> StoreFacts:
        with self._open("to describe the table", long=True) as (connection, layout):
            seen = layout.seen
            [(rows, size)] = connection.run(
                "SELECT count({}), (SELECT pg_total_relation_size(%s::oid)) FROM {}",
                seen.vectors.name,
                seen.identifier,
                params=[seen.oid],
            ).fetchall()
            metric = index_metric(connection, seen)
            notes = find_obstacles(connection, layout)
            return StoreFacts(
                rows=int(rows),
                dim=dim_of(connection, seen),
                metric=metric or "cosine",
                dtype=_DTYPES[seen.vectors.type_name],
                indexed=metric is not None,
                can_migrate=not notes,
                vector_bytes=int(size),
                vector_field=seen.vectors.name,
                notes=tuple(notes),
            )

    def scroll(self, cursor: Cursor | None, limit: int, side: Side = "old") -> Page:
        with self._open("to read rows") as (connection, layout):
            table = layout.table(side)
            key, after, values = sql.Identifier("v", table.key.name), sql.Composed([]), [limit]
            if cursor is not None:
                after = sql.SQL("AND {} > %s::{}").format(key, sql.SQL(table.key_type))
                values = [cursor, limit]
            tail = sql.SQL("{} ORDER BY {} LIMIT %s").format(after, key)
            page = read_page(connection, table, tail, values)
            return Page(page.ids, page.vectors, page.ids[-1] if len(page.ids) == limit else None)

    def sample(self, count: int, seed: int = 0) -> Page:
        """Return rows of random pages of the table; of a small table, random rows."""
        with self._open("to sample rows", long=True) as (connection, layout):
            table = layout.table("old")
            tail = sql.SQL("ORDER BY hashtextextended({}::text, %s) LIMIT %s").format(
                sql.Identifier("v", table.key.name)
            )
            [(rows, pages)] = connection.execute(
                "SELECT reltuples, greatest(relpages, 1) FROM pg_class WHERE oid = %s", [table.oid]
            ).fetchall()
            if rows > max(SMALL_TABLE, 20 * count):
                percent = min(100.0, max(400.0 * count / rows, 100.0 * count / pages))
                some = sql.SQL("TABLESAMPLE SYSTEM ({}) REPEATABLE ({})").format(percent, seed)
                page = read_page(connection, table, tail, [seed, count], some)
                if len(page.ids) == count:
                    return page
            return read_page(connection, table, tail, [seed, count])

    def fetch(self, ids: Sequence[StoreId], side: Side = "old") -> Page:
        with self._open("to fetch rows") as (connection, layout):
            return fetch(connection, layout.table(side), ids)

    def read_field(self, ids: Sequence[StoreId], field: str) -> Sequence[str | None]:
        with self._open("to read texts") as (connection, layout):
            types = {e.name: (e.category, e.type_text) for e in layout.seen.columns}
            category, type_text = types.get(field, ("", ""))
            if category != "S":
                problem = f"The table has no column `{field}`."
                if field in types:
                    problem = f"The column `{field}` has the type {type_text}, which is no text."
                raise StoreUnsupported(
                    f"{problem} Name the column of texts in `text_field`.", field="text_field"
                )
            text = sql.SQL("left({}::text, {})").format(sql.Identifier("r", field), MAX_TEXT)
            found = read_texts(connection, layout.seen, text, ids)
            return [found.get(str(each)) for each in ids]

    def find_nearest(self, wanted: Search) -> Sequence[Hits]:
        # Without an index PostgreSQL may be silent for longer than it is in other searches.
        with (
            self._open("to search", long=wanted.exact) as (connection, layout),
            connection.transaction(),
        ):
            return search(connection, layout, wanted, self.location.options)

    def checksum(self, hear: HearRows = lambda rows: None) -> RowsChecksum:
        """Return sums of two hashes of each row's text: PostgreSQL streams, the order is free."""
        with self._open("to compute a checksum", long=True) as (connection, layout):
            names = [layout.seen.key.name, *sorted(layout.seen.payload)]
            query = sql.SQL(
                "SELECT hashtextextended(h, 0), hashtextextended(h, 1) "
                "FROM (SELECT ROW({})::text AS h FROM {} t) hashes"
            ).format(
                sql.SQL(", ").join(sql.Identifier("t", name) for name in names),
                layout.seen.identifier,
            )
            count, sums = 0, (0, 0)
            reading = connection.cursor("anchorage_checksum", binary=True)
            with connection.transaction(), reading as cursor:
                cursor.execute(query)
                while rows := cursor.fetchmany(ROWS_A_FETCH):
                    parts = zip(sums, *rows, strict=True)
                    count, sums = count + len(rows), (sum(next(parts)), sum(next(parts)))
                    hear(count)
        digest = hashlib.sha256(f"{names}:{sums[0]}:{sums[1]}".encode()).hexdigest()
        return RowsChecksum(count, digest)

    def migration(self, tag: str, dim: int) -> Migration:
        return PgMigration(self.connections, self.location, tag, dim)

    def close(self) -> None:
        self.connections.close()
