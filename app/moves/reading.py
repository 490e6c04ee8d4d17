"""What a plan reads of a store, the stores that no plan can move, and what a migration costs.

Seconds, writes and disk are measured where that needs no write, and otherwise left open.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
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
from app.maths.relevance.advice import UNIT_COSTS, AdvisedOption
from app.moves.maps import MigrationMaps
from app.stores.port import Capabilities, Store, StoreFacts, StoreId, StoreVectors
from app.types import EncoderKind, InputRole

log = logging.getLogger("anchorage.migration")

#: bytes of a number by the dtype that a store names; others count as float32
NUMBER_SIZES = {"float16": 2, "bfloat16": 2, "float64": 8, "int8": 1, "uint8": 1}

#: rows that are translated to measure the speed
TIMED_TRANSLATIONS = 1_000

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


def translate_speed(maps: MigrationMaps, reading: StoreReading) -> float:
    """Return the rows a second of a page, after a first one that warms caches."""
    rows = reading.sample[:TIMED_TRANSLATIONS]
    maps.translate(rows)
    begun = time.perf_counter()
    maps.translate(rows)
    return len(rows) / max(time.perf_counter() - begun, 1e-9)


def encode_speed(
    services: Services, context: RequestContext, target: tables.EncoderRow, texts: Sequence[str]
) -> float | None:
    """Return the texts a second that the target encodes; None where it cannot."""
    if not texts or target.kind == EncoderKind.external:
        return None
    most = services.limits.input_characters
    cut = [text[:most] for text in texts]
    try:
        encoding.encode(services, context, target, cut[:1], role=InputRole.document)
        begun = time.perf_counter()
        encoding.encode(services, context, target, cut, role=InputRole.document)
    except AnchorageError as error:
        log.info("the speed of encoder %s is unknown: %s", target.name, error.detail)
        return None
    return len(cut) / max(time.perf_counter() - begun, 1e-9)


def estimate_cost(
    reading: StoreReading,
    target_dim: int,
    *,
    translates: float,
    encodes: float | None,
    re_embed: float,
    rows_per_second: float | None,
) -> dict[str, Any]:
    """Return seconds, writes and disk_bytes of the migration, and what they rest on."""
    rows = reading.facts.rows
    seconds = rows / translates
    speeds: dict[str, float | None] = {
        "read_rows_per_second": reading.read_per_second,
        "translate_rows_per_second": translates,
        "encode_rows_per_second": encodes,
        "max_rows_per_second": rows_per_second,
    }
    if reading.read_per_second is not None:
        seconds += rows / reading.read_per_second
    if rows_per_second is not None:
        seconds = max(seconds, rows / rows_per_second)
    unknown = ["writes", "index"]
    if re_embed:
        if encodes is None:
            unknown.append("encoding")
        else:
            seconds += rows / encodes
    return {
        "seconds": round(seconds, 3),
        "writes": rows,
        "disk_bytes": disk_bytes(reading, target_dim),
        "seconds_from": {
            **{name: None if speed is None else round(speed, 1) for name, speed in speeds.items()},
            "not_included": unknown,
        },
    }


def disk_bytes(reading: StoreReading, target_dim: int) -> int:
    """Return the bytes of the new vectors, with an index as large as that of the old ones.

    Without the store's word on the present size, the index counts as nothing.
    """
    facts = reading.facts
    size = NUMBER_SIZES.get(facts.dtype, 4)
    plain = facts.rows * facts.dim * size
    ratio = 1.0 if facts.vector_bytes is None else max(1.0, facts.vector_bytes / max(plain, 1))
    return round(facts.rows * target_dim * size * ratio)


def advice_document(
    found: Mapping[str, Any],
    estimate: Mapping[str, Any] | None,
    cost: Mapping[str, Any],
    reading: StoreReading,
    encodes: float | None,
) -> list[dict[str, Any]]:
    """Return the options of an advice with their costs in this store, best first."""
    rows = reading.facts.rows
    translate_s = sum(
        rows / speed
        for name in ("read_rows_per_second", "translate_rows_per_second")
        if (speed := cost["seconds_from"][name])
    )
    seconds: dict[AdvisedOption, float | None] = {
        "translate": round(translate_s, 3),
        "re-embed": None if encodes is None else round(rows / encodes, 3),
    }

    kept = ["name", "possible", "reason", "certainty", "ndcg_10", "over_keep", "writes"]
    kept += ["encodings", "encodings_per_query", "texts_per_query"]

    def describe(option: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **{name: option[name] for name in kept},
            "fidelity": fidelity(option["name"], estimate),
            "seconds": seconds.get(option["name"], 0.0),
            "disk_bytes": UNIT_COSTS[option["name"]][0] * int(cost["disk_bytes"]),
        }

    return [describe(option) for option in found["options"]]


def fidelity(name: AdvisedOption, estimate: Mapping[str, Any] | None) -> float | None:
    """Return the recall of the target's own results that an option has; None: not known."""
    if name == "re-embed":
        return 1.0
    if name != "translate" or estimate is None:
        return None
    return float(estimate["recall"])
