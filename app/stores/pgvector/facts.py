"""A table as it is now, which strategies it allows, and what a person must know before."""

from __future__ import annotations

from psycopg import sql

from app.errors import StoreUnsupported
from app.stores.base import Metric, StoreFacts, StoreNote
from app.stores.pgvector.catalogue import vector_indexes
from app.stores.pgvector.connections import StoreConnection
from app.stores.pgvector.dependents import obstacles
from app.stores.pgvector.layout import PgLayout
from app.stores.pgvector.reading import dim_of

DTYPES = {"vector": "float32", "halfvec": "float16"}


def metric_of(connection: StoreConnection, layout: PgLayout) -> Metric:
    """Return the metric of the index; without an index, cosine."""
    if layout.state is not None:
        metric: Metric = layout.state.details["metric"]
        return metric
    found = vector_indexes(connection, layout.seen.relation, layout.seen.column)
    return found[0].metric if found else "cosine"


def collection_facts(connection: StoreConnection, layout: PgLayout) -> StoreFacts:
    """Return the collection as clients see it. Raises StoreUnsupported."""
    seen = layout.seen
    row = connection.execute(
        sql.SQL("SELECT count({}) FROM {}").format(
            sql.Identifier(seen.column), seen.relation.identifier
        )
    ).fetchone()
    size = connection.execute(
        "SELECT pg_table_size(%s::oid) + coalesce((SELECT sum(pg_relation_size(indexrelid)) FROM "
        "pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam "
        "WHERE i.indrelid = %s::oid AND m.amname IN ('hnsw', 'ivfflat')), 0)",
        [seen.relation.oid, seen.relation.oid],
    ).fetchone()
    assert row is not None
    assert size is not None
    indexes = vector_indexes(connection, seen.relation, seen.column)
    notes, strategies = _notes(connection, layout)
    if any(each.partial for each in indexes):
        notes.append(StoreNote("partial-index", "A partial index of the vectors is not copied."))
    return StoreFacts(
        rows=int(row[0]),
        dim=dim_of(connection, seen),
        metric=metric_of(connection, layout),
        dtype=DTYPES[seen.type_name],
        indexed=bool(indexes),
        strategies=strategies,
        vector_bytes=int(size[0]),
        vector_field=layout.old.column,
        notes=tuple(notes),
    )


def _notes(
    connection: StoreConnection, layout: PgLayout
) -> tuple[list[StoreNote], tuple[str, ...]]:
    notes = [
        StoreNote(
            "view-after-cutover",
            f"After a cutover by `side`, {layout.table.name!r} is a view. SELECT, INSERT, UPDATE "
            "and DELETE continue to work; INSERT ... ON CONFLICT, TRUNCATE, MERGE and new foreign "
            "keys to it do not. If the application needs one of them, choose the strategy `swap`, "
            "which copies the whole table.",
        ),
        StoreNote(
            "column-not-offered",
            "New vectors are not written into the table itself: next to an HNSW index, an UPDATE "
            "was measured at 136 rows/s, and a COPY into another table at 32,600.",
        ),
    ]
    found = {each: obstacles(connection, layout, each) for each in ("side", "swap")}
    notes += dict.fromkeys(note for each in found.values() for note in each)
    return notes, tuple(each for each in found if not found[each])


def require_no_obstacles(connection: StoreConnection, layout: PgLayout, strategy: str) -> None:
    """Raises StoreUnsupported for the first obstacle to a reindexing by this strategy."""
    for each in obstacles(connection, layout, strategy):
        raise StoreUnsupported(each.detail, field="collection")
