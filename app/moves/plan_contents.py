"""What a plan reads of a store, and what it says: what `run` obeys, its estimates, and its costs.

Costs are measured where that needs no write, and otherwise left open.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from app.context import Services
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
from app.maths.translators.methods import Options
from app.moves.maps import BuiltMaps, MigrationMaps
from app.request_context import RequestContext
from app.search import advice
from app.search.advice import AdviceFacts
from app.stores.port import Capabilities, Store, StoreFacts, StoreId, StoreVectors
from app.stores.registry import has_cutover
from app.translate.fit import FitRequest
from app.types import EncoderKind, InputRole

#: rows of the sample, and pages that are read to measure the speed
PLAN_SAMPLE, TIMED_PAGES = 2_000, 3

#: texts that are encoded to measure the speed
TIMED_TEXTS = 32


@dataclass(frozen=True, eq=False)
class StoreReading:
    """A store, as a plan finds it.

    sample           (n, d) the sampled vectors that have a direction, with their ids
    undirected       sampled rows without one: zero or not finite
    read_per_second  rows that scrolling reads in a second; None: too few rows to tell
    texts            of some sampled rows; empty without a text field
    has_texts        whether at least one of them has a text
    """

    facts: StoreFacts
    capabilities: Capabilities
    sample: StoreVectors
    sample_ids: list[StoreId]
    undirected: list[StoreId]
    read_per_second: float | None
    texts: list[str]

    @property
    def has_texts(self) -> bool:
        return bool(self.texts)


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
    if reading.capabilities.keeps_lengths:
        return
    reason = "The store scales vectors to unit length, so their lengths are lost"
    if keep_norms:
        raise InvalidOption(
            f"{reason}, and `keep_norms` needs them. Remove it.", field="options.keep_norms"
        )


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

    def describe(option: Mapping[str, Any]) -> dict[str, Any]:
        same = ("name", "possible", "reason", "certainty", "ndcg_10", "over_keep")
        writes, encodings, _ = UNIT_COSTS[option["name"]]
        return {
            **{name: option[name] for name in same},
            "fidelity": fidelity(option["name"], estimate),
            "writes": writes * rows,
            "encodings": encodings * rows,
            "encodings_per_query": option["encodings_per_query"],
            "texts_per_query": option["texts_per_query"],
            "seconds": seconds.get(option["name"], 0.0),
            "disk_bytes": writes * int(cost["disk_bytes"]),
        }

    return [describe(option) for option in found["options"]]


def fidelity(name: AdvisedOption, estimate: Mapping[str, Any] | None) -> float | None:
    """Return the recall of the target's own results that an option has; None: not known."""
    if name == "re-embed":
        return 1.0
    if name != "translate" or estimate is None:
        return None
    return float(estimate["recall"])


#: rows of a batch, and the recall that `verify` must find of the new index, unless a plan says
DEFAULT_BATCH, DEFAULT_MIN_RECALL = 4_000, 0.95


@dataclass(frozen=True)
class MigrationTask:
    """A wanted migration.

    min_quality    least estimate of the translator, in an index of the store's size
    force_space    plan even where the vectors seem to be another encoder's, or anchors useless
    re_embed       1 to encode all rows again, 0 to translate them
    evaluation     a finished evaluation of judged queries, for the advice
    """

    store: str
    target: str
    anchor_set: str
    method: str = "auto"
    options: Options = field(default_factory=dict)
    min_quality: Mapping[str, float] = field(default_factory=dict)
    force_space: bool = False
    min_recall: float = DEFAULT_MIN_RECALL
    re_embed: float = 0.0
    rows_per_second: float | None = None
    batch: int = DEFAULT_BATCH
    evaluation: str | None = None
    old_encoder_runs: bool | None = None
    text_exists: bool | None = None


@dataclass(frozen=True, eq=False)
class PlanInputs:
    """What the steps of a plan have found.

    space  what the check of the vectors says
    """

    task: MigrationTask
    store: tables.StoreRow
    request: FitRequest
    reading: StoreReading
    space: Mapping[str, Any]
    built: BuiltMaps
    estimate: dict[str, Any] | None

    @property
    def pair(self) -> tuple[tables.SpaceRow, tables.SpaceRow]:
        assert self.built.served.pair is not None
        return self.built.served.pair


def make_plan(services: Services, context: RequestContext, inputs: PlanInputs) -> dict[str, Any]:
    """Return the plan as JSON."""
    task, reading, served = inputs.task, inputs.reading, inputs.built.served
    source, target = inputs.pair
    maps = inputs.built.maps
    encodes = encode_speed(services, context, target.encoder, reading.texts)
    cost = estimate_cost(
        reading,
        target.encoder.dim,
        translates=translate_speed(maps, reading),
        encodes=encodes,
        re_embed=task.re_embed,
        rows_per_second=task.rows_per_second,
    )
    advised = _advise(services, context, inputs)
    return {
        "store": inputs.store.name,
        "source": source.encoder.name,
        "target": target.encoder.name,
        "anchor_set": source.anchor_set.name,
        "method": served.method,
        "options": dict(served.options or {}),
        "translator": served.id,
        "rows": reading.facts.rows,
        "dim": target.encoder.dim,
        "estimate": inputs.estimate,
        "min_recall": task.min_recall,
        "re_embed": task.re_embed,
        "rows_per_second": task.rows_per_second,
        "batch": task.batch,
        "advice": advice_document(advised, inputs.estimate, cost, reading, encodes),
        "cost": cost,
        "space": dict(inputs.space),
        "notes": _notes(inputs),
    }


def _advise(services: Services, context: RequestContext, inputs: PlanInputs) -> dict[str, Any]:
    task, rows = inputs.task, inputs.reading.facts.rows
    has_text = inputs.reading.has_texts if task.text_exists is None else task.text_exists
    return advice.advise(
        services,
        context,
        inputs.request,
        AdviceFacts(
            evaluation=task.evaluation,
            corpus_size=rows,
            old_encoder_runs=task.old_encoder_runs,
            text_exists=has_text,
        ),
    )


def _notes(inputs: PlanInputs) -> list[dict[str, str]]:
    """Return what a person must know before the migration, with codes."""
    reading = inputs.reading
    notes = [{"code": note.code, "detail": note.detail} for note in reading.facts.notes]
    notes += [{"code": warning.code, "detail": warning.detail} for warning in inputs.built.warnings]
    notes.append(
        {
            "code": "search-works",
            "detail": f"POST /stores/{inputs.store.name}/search answers queries of the new encoder "
            "now, and writes nothing. A run is not needed for it.",
        }
    )
    if inputs.estimate is None:
        notes.append(
            {
                "code": "no-estimate",
                "detail": "There are too few anchors to estimate a recall. Add anchors to the set.",
            }
        )
    if inputs.space.get("verdict") == "unknown":
        notes.append(
            {
                "code": "space-unknown",
                "detail": "It is not known whether the store has the source's vectors: there are "
                "too few rows or anchors, or the anchors are of another corpus.",
            }
        )
    if inputs.space.get("mixture"):
        notes.append({"code": "mixed-rows", "detail": f"{inputs.space['mixture']}."})
    if reading.undirected:
        share = len(reading.undirected) / (len(reading.undirected) + len(reading.sample))
        notes.append(
            {
                "code": "rows-without-direction",
                "detail": f"{share:.1%} of the sampled vectors are zero or not finite. A run skips "
                "and counts such rows.",
            }
        )
    if not has_cutover(inputs.store.kind):
        notes.append(
            {
                "code": "stop-writes",
                "detail": "The store does not report writes. Stop the writes of your application "
                "from `run` until it opens the new vectors: this kind of store has no cutover.",
            }
        )
    elif not reading.capabilities.captures_writes:
        notes.append(
            {
                "code": "writes-not-captured",
                "detail": "The store does not report writes of other clients. `sync`, `verify` and "
                "`cutover` find them by comparing both sides. Stop writes during the cutover.",
            }
        )
    return notes
