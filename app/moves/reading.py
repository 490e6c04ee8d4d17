"""What a plan reads of a store, the stores that no plan can move, and what a migration costs.

Seconds, writes and disk are measured where that needs no write, and otherwise left open.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.context import RequestContext, Services
from app.db import tables
from app.encoders import encoding
from app.errors import (
    AnchorageError,
    DimensionMismatch,
    InvalidOption,
    InvalidRequest,
    NonFinite,
    StoreUnsupported,
)
from app.moves.maps import MigrationMaps
from app.stores.port import Capabilities, Store, StoreFacts, StoreId, StoreVectors
from app.types import EncoderKind, InputRole

log = logging.getLogger("anchorage.migration")

#: bytes of a number by the dtype that a store names; others count as float32
NUMBER_SIZES = {"float16": 2, "bfloat16": 2, "float64": 8, "int8": 1, "uint8": 1}

#: rows that are translated to measure the speed
TIMED_TRANSLATIONS = 512

#: rows of the sample, and those whose texts are read
PLAN_SAMPLE, SAMPLED_TEXTS = 2_000, 256

#: texts that are encoded to measure the speed: here, where each costs CPU, and by an endpoint
TIMED_HERE, TIMED_REMOTE = 12, 32


#: rows that are indexed in a second after the sweep: 20,000 rows of 384 numbers, two cores
#: (benchmarks/results/stores.json). Of a million, each takes longer
INDEXED_A_SECOND = {"pgvector": 4_500}


@dataclass(frozen=True, eq=False)
class StoreReading:
    """A store, as a plan finds it.

    sample           (n, d) the sampled vectors that have a direction, with their ids
    undirected       sampled rows without one: zero or not finite
    read_per_second  rows that scrolling reads in a second; None: too few rows to tell
    texts            of those sampled rows that have one; empty without a text field
    asked            sampled rows whose texts were read
    """

    facts: StoreFacts
    capabilities: Capabilities
    sample: StoreVectors
    sample_ids: list[StoreId]
    undirected: list[StoreId]
    read_per_second: float | None
    texts: list[str]
    asked: int


def read_store(store: Store, *, batch: int, text_field: str | None, dim: int) -> StoreReading:
    """Read a store without a write. dim: of the new vectors.

    Raises the errors of the store, and StoreUnsupported where it cannot have these dimensions.
    """
    facts = store.facts()
    store.require_dim(dim)
    page = store.sample(PLAN_SAMPLE)
    vectors = np.asarray(page.vectors, dtype=np.float32).reshape(len(page.ids), facts.dim)
    largest = np.abs(vectors).max(axis=1, initial=0.0)
    directed = np.isfinite(largest) & (largest > 0)
    ids = list(page.ids)
    texts: list[str] = []
    if text_field is not None and ids:
        texts = [text for text in store.texts(ids[:SAMPLED_TEXTS]) if text and text.strip()]
    begun = time.perf_counter()
    read = len(store.scroll(None, batch).ids)
    return StoreReading(
        facts=facts,
        capabilities=store.capabilities,
        sample=np.ascontiguousarray(vectors[directed]),
        sample_ids=[ids[i] for i in np.flatnonzero(directed)],
        undirected=[ids[i] for i in np.flatnonzero(~directed)],
        read_per_second=read / max(time.perf_counter() - begun, 1e-9) if read else None,
        texts=texts,
        asked=min(len(ids), SAMPLED_TEXTS),
    )


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
            f"{reasons} Until then the collection can be searched, which writes nothing, and not "
            "migrated.".lstrip(),
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


def seconds_to_translate(maps: MigrationMaps, reading: StoreReading) -> float:
    """Return the seconds to read all rows, where that speed is known, and to translate them."""
    rows = reading.sample[:TIMED_TRANSLATIONS]
    maps.forward.map_rows(rows[:32])  # warms caches
    begun = time.perf_counter()
    maps.forward.map_rows(rows)
    translates = len(rows) / max(time.perf_counter() - begun, 1e-9)
    speeds = [speed for speed in (reading.read_per_second, translates) if speed is not None]
    return sum(reading.facts.rows / speed for speed in speeds)


def encode_speed(
    services: Services, context: RequestContext, target: tables.EncoderRow, texts: Sequence[str]
) -> float | None:
    """Return the texts a second that the target encodes; None where it cannot."""
    if not texts or target.kind == EncoderKind.external:
        return None
    most = services.limits.input_characters
    cut = [text[:most] for text in texts]
    timed = cut[: TIMED_REMOTE if target.kind == EncoderKind.openai else TIMED_HERE]
    try:
        encoding.encode(services, context, target, timed[:1], role=InputRole.document)
        begun = time.perf_counter()
        encoding.encode(services, context, target, timed, role=InputRole.document)
    except AnchorageError as error:
        log.info("the speed of encoder %s is unknown: %s", target.name, error.detail)
        return None
    # The timed texts may be longer than the others: characters tell what all of them take.
    seconds = (time.perf_counter() - begun) * sum(map(len, cut)) / sum(map(len, timed))
    return len(cut) / max(seconds, 1e-9)


def embedding_cost(
    services: Services,
    context: RequestContext,
    target: tables.EncoderRow,
    reading: StoreReading,
) -> dict[str, Any]:
    """Return what embedding every row costs, from a sample of its texts, without limits.

    texts_per_second  by one request at a time; None where the target did not answer

    Raises InvalidRequest where no sampled row has a text.
    """
    rows, texts = reading.facts.rows, reading.texts
    if not texts:
        raise InvalidRequest(
            f"None of {reading.asked} sampled rows has a text in the store's `text_field`. "
            "Register the store with another field, or send `fill: translate` and an `anchor_set`.",
            field="fill",
        )
    most = services.limits.input_characters
    cut = [text[:most] for text in texts]
    counted, counted_by, long = encoding.count_tokens(services, target, cut)
    long += sum(len(text) > most for text in texts)
    with_text = round(rows * len(texts) / reading.asked)
    return {
        "rows": rows,
        "rows_with_text": with_text,
        "rows_without_text": rows - with_text,
        "tokens": round(with_text * counted / len(texts)),
        "tokens_by": counted_by,
        "tokens_per_character": counted / max(1, sum(map(len, cut))),
        "truncated": round(with_text * long / len(texts)),
        "texts_per_second": encode_speed(services, context, target, texts),
        "disk_bytes": disk_bytes(reading, target.dim),
    }


def index_seconds(kind: str, facts: StoreFacts) -> float | None:
    """Return the least time of the index of the new vectors; None where nobody measured one."""
    speed = INDEXED_A_SECOND.get(kind)
    return round(facts.rows / speed, 3) if speed and facts.indexed else None


def disk_bytes(reading: StoreReading, target_dim: int) -> int:
    """Return the bytes of the new vectors, with an index as large as that of the old ones.

    Without the store's word on the present size, the index counts as nothing.
    """
    facts = reading.facts
    size = NUMBER_SIZES.get(facts.dtype, 4)
    plain = facts.rows * facts.dim * size
    ratio = 1.0 if facts.vector_bytes is None else max(1.0, facts.vector_bytes / max(plain, 1))
    return round(facts.rows * target_dim * size * ratio)
