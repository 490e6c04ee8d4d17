"""What a migration costs: seconds, writes and disk, and what each option of an advice costs.

Costs are measured where that needs no write, and otherwise left open.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from app.context import RequestContext, Services
from app.db import tables
from app.encoders import encoding
from app.errors import AnchorageError
from app.maths.relevance.advice import UNIT_COSTS, AdvisedOption
from app.moves.maps import MigrationMaps
from app.moves.reading import StoreReading
from app.types import EncoderKind, InputRole

log = logging.getLogger("anchorage.migration")

#: bytes of a number by the dtype that a store names; others count as float32
NUMBER_SIZES = {"float16": 2, "bfloat16": 2, "float64": 8, "int8": 1, "uint8": 1}

#: rows that are translated to measure the speed
TIMED_TRANSLATIONS = 1_000


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
