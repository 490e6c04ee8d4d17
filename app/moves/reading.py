"""What a plan reads of a store, and the stores that no plan can move."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from app.errors import DimensionMismatch, InvalidOption, InvalidRequest, NonFinite, StoreUnsupported
from app.stores.port import Capabilities, Store, StoreFacts, StoreId, StoreVectors

#: rows of the sample, pages that are read to measure the speed, and texts to encode for it
PLAN_SAMPLE, TIMED_PAGES, TIMED_TEXTS = 2_000, 3, 32


@dataclass(frozen=True, eq=False)
class StoreReading:
    """A store, as a plan finds it.

    sample           (n, d) the sampled vectors that have a direction, with their ids
    undirected       sampled rows without one: zero or not finite
    read_per_second  rows that scrolling reads in a second; None: too few rows to tell
    texts            of some sampled rows; empty without a text field
    """

    facts: StoreFacts
    capabilities: Capabilities
    sample: StoreVectors
    sample_ids: list[StoreId]
    undirected: list[StoreId]
    read_per_second: float | None
    texts: list[str]


def read_store(store: Store, *, batch: int, text_field: str | None) -> StoreReading:
    """Read a store without a write. Raises the errors of the store."""
    facts = store.facts()
    page = store.sample(PLAN_SAMPLE)
    vectors = np.asarray(page.vectors, dtype=np.float32).reshape(len(page.ids), facts.dim)
    largest = np.abs(vectors).max(axis=1, initial=0.0)
    directed = np.isfinite(largest) & (largest > 0)
    ids = list(page.ids)
    texts: list[str] = []
    if text_field is not None and ids:
        texts = [text for text in store.texts(ids[:TIMED_TEXTS]) if text and text.strip()]
    return StoreReading(
        facts=facts,
        capabilities=store.capabilities,
        sample=np.ascontiguousarray(vectors[directed]),
        sample_ids=[ids[i] for i in np.flatnonzero(directed)],
        undirected=[ids[i] for i in np.flatnonzero(~directed)],
        read_per_second=_time_pages(store, batch),
        texts=texts,
    )


def _time_pages(store: Store, batch: int) -> float | None:
    """Return the rows a second of TIMED_PAGES pages; None without a row."""
    cursor, rows, begun = None, 0, time.perf_counter()
    for _ in range(TIMED_PAGES):
        page = store.scroll(cursor, batch)
        rows, cursor = rows + len(page.ids), page.cursor
        if cursor is None:
            break
    return rows / max(time.perf_counter() - begun, 1e-9) if rows else None


def check_reading(reading: StoreReading, *, store: str, encoder: str, dim: int) -> None:
    """Raises InvalidRequest for an empty store, DimensionMismatch, and NonFinite where no sampled
    vector has a direction.
    """
    if reading.facts.rows == 0 or not (len(reading.sample) or reading.undirected):
        raise InvalidRequest(
            f"The store {store!r} has no row with a vector, so there is nothing to migrate. Fill "
            "it by the new encoder.",
            field="store",
        )
    if reading.facts.dim != dim:
        raise DimensionMismatch(
            f"The store {store!r} has vectors of {reading.facts.dim} dimensions, and its encoder "
            f"{encoder!r} has {dim}. Register the store with the encoder that made its vectors.",
            field="store",
        )
    if not len(reading.sample):
        raise NonFinite(
            f"All {len(reading.undirected)} sampled vectors of the store {store!r} are zero or "
            "not finite. Check its `vector_field`.",
            field="store",
        )


def require_migratable(facts: StoreFacts) -> None:
    """Raises StoreUnsupported for a collection that can only be searched."""
    if not facts.can_migrate:
        reasons = " ".join(note.detail for note in facts.notes)
        raise StoreUnsupported(
            "This collection allows no way to keep new vectors next to the old ones. Search it "
            f"with POST /stores/{{name}}/search, which writes nothing. {reasons}".rstrip(),
            field="store",
        )


def refuse_lengths(reading: StoreReading, keep_norms: bool) -> None:
    """Raises InvalidOption for maps that need lengths, where the store keeps none."""
    if keep_norms and not reading.capabilities.keeps_lengths:
        raise InvalidOption(
            "The store scales vectors to unit length, so their lengths are lost, and `keep_norms` "
            "needs them. Remove it.",
            field="options.keep_norms",
        )
