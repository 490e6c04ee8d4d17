"""A table of PostgreSQL with a column of vectors."""

from __future__ import annotations

from collections.abc import Sequence

from app.stores.pgvector import reading
from app.stores.pgvector.connections import PgConnections
from app.stores.pgvector.facts import collection_facts
from app.stores.pgvector.faults import DESCRIBE
from app.stores.pgvector.layout import load_layout
from app.stores.pgvector.migration import PgMigration
from app.stores.pgvector.search import search
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

    def facts(self) -> StoreFacts:
        with self.connections.use(DESCRIBE, long=True) as connection:
            return collection_facts(connection, load_layout(connection, self.location))

    def scroll(self, cursor: Cursor | None, limit: int, side: Side = "old") -> Page:
        with self.connections.use("to read rows") as connection:
            layout = load_layout(connection, self.location)
            return reading.scroll(connection, layout.vectors(side), cursor, limit)

    def sample(self, count: int, seed: int = 0) -> Page:
        with self.connections.use("to sample rows", long=True) as connection:
            layout = load_layout(connection, self.location)
            return reading.sample(connection, layout.vectors("old"), count, seed)

    def fetch(self, ids: Sequence[StoreId], side: Side = "old") -> Page:
        with self.connections.use("to fetch rows") as connection:
            layout = load_layout(connection, self.location)
            return reading.fetch(connection, layout.vectors(side), ids)

    def read_field(self, ids: Sequence[StoreId], field: str) -> Sequence[str | None]:
        with self.connections.use("to read texts") as connection:
            layout = load_layout(connection, self.location)
            return reading.texts(connection, layout, field, ids)

    def find_nearest(self, wanted: Search) -> Sequence[Hits]:
        # Without an index PostgreSQL may be silent for longer than it is in other searches.
        with self.connections.transaction("to search", long=wanted.exact) as connection:
            layout = load_layout(connection, self.location)
            return search(connection, layout, wanted, self.location.options)

    def checksum(self, hear: HearRows = lambda rows: None) -> RowsChecksum:
        with self.connections.use("to compute a checksum", long=True) as connection:
            return reading.checksum(connection, load_layout(connection, self.location), hear)

    def migration(self, tag: str, dim: int) -> Migration:
        return PgMigration(self.connections, self.location, tag, dim)

    def close(self) -> None:
        self.connections.close()
