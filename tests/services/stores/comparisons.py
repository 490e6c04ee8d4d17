"""Counts of compared searches, as they are after many of them."""

from __future__ import annotations

from app.services.context import Services
from app.services.stores.live_comparison import add_sums
from app.storage import tables
from app.storage.queries import resources
from app.storage.queries.store_comparisons import Compared

SUMS = {
    "shadowed": 90.0,
    "dropped": 2.0,
    "overlap": 45.0,
    "rank_change": 100.0,
    "rank_changes": 50.0,
    "latency:16": 90.0,
    "old_latency:12": 90.0,
    "native_texts": 1_000.0,
    "interleaved": 100.0,
    "same": 7.0,
    "clicked": 60.0,
    "won": 40.0,
    "lost": 10.0,
}


def count_comparisons(services: Services, store: str, target: str) -> None:
    """Count searches by cascade that were compared with the store's own."""
    with services.db.transaction() as session:
        row = resources.by_name(session, tables.StoreRow, "default", store)
        encoder = resources.by_name(session, tables.EncoderRow, "default", target)
    add_sums(services, Compared(row.id, encoder.id, "cascade"), SUMS)
