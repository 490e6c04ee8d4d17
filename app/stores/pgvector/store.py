"""A table of PostgreSQL with a column of vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import psycopg

from app.errors import StoreUnsupported
from app.stores.pgvector import reading
from app.stores.pgvector.connections import DESCRIBE, SHORT_STATEMENT_S, PgConnections
from app.stores.pgvector.facts import collection_facts
from app.stores.pgvector.layout import index_metric, load_layout
from app.stores.pgvector.migration import PgMigration
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
            return reading.scroll(connection, layout.vectors(side), layout.kind, cursor, limit)

    def sample(self, count: int, seed: int = 0) -> Page:
        with self.connections.use("to sample rows", long=True) as connection:
            layout = load_layout(connection, self.location)
            return reading.sample(connection, layout.old, layout.kind, count, seed)

    def fetch(self, ids: Sequence[StoreId], side: Side = "old") -> Page:
        with self.connections.use("to fetch rows") as connection:
            layout = load_layout(connection, self.location)
            return reading.fetch(connection, layout.vectors(side), layout.kind, ids)

    def read_field(self, ids: Sequence[StoreId], field: str | None) -> Sequence[str | None]:
        if field is None:
            raise StoreUnsupported(
                "The store names no column of texts. Name it in `text_field`.", field="text_field"
            )
        with self.connections.use("to read texts") as connection:
            layout = load_layout(connection, self.location)
            found: Sequence[str | None] = reading.texts(connection, layout, field, ids)
            return found

    def find_nearest(self, wanted: Search) -> Sequence[Hits]:
        results = []
        options = self.location.options
        # Without an index PostgreSQL may be silent for longer than it is in other searches.
        with self.connections.transaction("to search", long=wanted.exact) as connection:
            layout = load_layout(connection, self.location)
            place = layout.vectors(wanted.side)
            reading.check_queries(wanted.queries, reading.dim_of(connection, place))
            metric = index_metric(connection, layout.seen) or "cosine"
            reading.set_search_options(
                connection, wanted.k, options, exact=wanted.exact, filtered=bool(wanted.filter)
            )
            try:
                for query in np.asarray(wanted.queries, dtype=np.float32):
                    results.append(
                        reading.search(
                            connection,
                            place,
                            layout.kind,
                            metric,
                            query,
                            wanted.k,
                            wanted.filter,
                            with_vectors=wanted.vectors,
                        )
                    )
            except psycopg.errors.QueryCanceled:
                if not wanted.exact:
                    raise
                raise StoreUnsupported(
                    f"An exact search of this table takes more than {SHORT_STATEMENT_S} s.",
                    field="exact",
                ) from None
            connection.execute("SELECT set_config('enable_indexscan', 'on', true)")
            return [
                reading.hits(
                    found,
                    reading.payloads(connection, layout, found[0]) if wanted.payload else None,
                )
                for found in results
            ]

    def checksum(self, hear: HearRows = lambda rows: None) -> RowsChecksum:
        with self.connections.use("to compute a checksum", long=True) as connection:
            return reading.checksum(connection, load_layout(connection, self.location), hear)

    def migration(self, tag: str, dim: int) -> Migration:
        return PgMigration(self.connections, self.location, tag, dim)

    def close(self) -> None:
        self.connections.close()
