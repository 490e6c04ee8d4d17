"""What a plan says: what `run` obeys, what it promises, and what else can be done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from app.maths.quality.candidates import Preference
from app.maths.relevance.re_embedding import (
    DEFAULT_ROW_CHOICE,
    ReEmbeddedShare,
    ReEmbeddingCurve,
    RowChoice,
    at_size,
    re_embedding_curve,
)
from app.maths.translators.methods import Options
from app.services.anchors import made_pairs, spaces
from app.services.context import Services
from app.services.reindexing import plan_estimates, re_embedding
from app.services.reindexing.maps import BuiltMaps
from app.services.reindexing.plan_reading import StoreReading
from app.services.relevance import advice
from app.services.relevance.advice import AdviceTask, Prices
from app.services.request_context import RequestContext
from app.services.translators import weighting
from app.services.translators.translator_ids import canonical_json
from app.services.translators.translators import FitRequest
from app.storage import tables
from app.storage.cache import Key

#: rows of a batch, and the recall that `verify` must find of the new index, unless a plan says
DEFAULT_BATCH, DEFAULT_MIN_RECALL = 4_000, 0.95

#: nothing is known of what encoding and writing cost
NO_PRICES = Prices()

#: cache size of a curve
CACHED_CURVE_BYTES = 8 * 1024


@dataclass(frozen=True)
class ReindexingTask:
    """A wanted reindexing.

    min_quality    least promise of the translator, in an index of the store's size
    strategy       None: the store's default
    force_space    plan even where the vectors seem to be another encoder's
    re_embed       share of the rows to encode again, chosen by `re_embed_by`
    evaluation     a finished evaluation of judged queries, for the advice
    """

    store: str
    target: str
    anchor_set: str
    method: str = "auto"
    options: Options = field(default_factory=dict)
    prefer: Preference = "retrieval"
    min_quality: Mapping[str, float] = field(default_factory=dict)
    strategy: str | None = None
    force_space: bool = False
    min_recall: float = DEFAULT_MIN_RECALL
    re_embed: float = 0.0
    re_embed_by: RowChoice = DEFAULT_ROW_CHOICE
    rows_per_second: float | None = None
    most_latency_ms: float | None = None
    batch: int = DEFAULT_BATCH
    evaluation: str | None = None
    old_encoder_runs: bool | None = None
    text_exists: bool | None = None
    prices: Prices = NO_PRICES


@dataclass(frozen=True, eq=False)
class Draft:
    """What the steps of a plan have found. space: what the check of the vectors says."""

    task: ReindexingTask
    store: tables.StoreRow
    request: FitRequest
    strategy: str
    reading: StoreReading
    space: Mapping[str, Any]
    built: BuiltMaps
    promise: dict[str, Any] | None

    @property
    def pair(self) -> tuple[tables.SpaceRow, tables.SpaceRow]:
        assert self.built.served.pair is not None
        return self.built.served.pair


def make_plan(services: Services, context: RequestContext, draft: Draft) -> dict[str, Any]:
    """Return the plan as JSON. Raises the errors of `advise`, InvalidRequest and Overloaded."""
    task, reading, served = draft.task, draft.reading, draft.built.served
    source, target = draft.pair
    maps = draft.built.maps
    encodes = plan_estimates.encode_speed(services, context, target.encoder, reading.texts)
    estimates = plan_estimates.estimate(
        reading,
        target.encoder.dim,
        translates=plan_estimates.translate_speed(maps, reading),
        encodes=encodes,
        re_embed=task.re_embed,
        rows_per_second=task.rows_per_second,
    )
    chosen = _re_embedding(services, draft)
    advised = _advise(services, context, draft, encodes)
    return {
        "store": draft.store.name,
        "source": source.encoder.name,
        "target": target.encoder.name,
        "anchor_set": source.anchor_set.name,
        "anchor_set_version": source.version,
        "method": served.method,
        "options": dict(served.options or {}),
        "translator": served.id,
        "strategy": draft.strategy,
        "strategies": list(reading.facts.strategies or reading.capabilities.strategies),
        "rows": reading.facts.rows,
        "dim": target.encoder.dim,
        "promise": draft.promise,
        "min_recall": task.min_recall,
        **chosen,
        "rows_per_second": task.rows_per_second,
        "most_latency_ms": task.most_latency_ms,
        "batch": task.batch,
        "advice": plan_estimates.advice_document(
            advised, draft.promise, estimates, reading, encodes
        ),
        "estimates": estimates,
        "space": dict(draft.space),
        "notes": _notes(draft),
    }


def _re_embedding(services: Services, draft: Draft) -> dict[str, Any]:
    """Return the members about encoding rows again.

    Raises InvalidRequest where the wanted choice of rows is not possible.
    """
    task = draft.task
    quantiles = re_embedding.sample_quantiles(draft.built.maps, draft.reading.sample)
    if task.re_embed > 0:
        re_embedding.require_choice(quantiles, task.re_embed_by)
    curve = _curve(services, draft)
    return {
        "re_embed": task.re_embed,
        "re_embed_by": task.re_embed_by,
        "re_embed_below": re_embedding.threshold(quantiles, task.re_embed_by, task.re_embed),
        "re_embedding": {
            "measured_on": None if curve is None else curve.index,
            "before": None if curve is None else curve.before._asdict(),
            "shares": [] if curve is None else [_share_json(each) for each in curve.shares],
            "quantiles": quantiles,
        },
    }


def _share_json(each: ReEmbeddedShare) -> dict[str, Any]:
    return {
        "share": each.share,
        "recall": {name: recall._asdict() for name, recall in each.recall.items()},
    }


def _advise(
    services: Services, context: RequestContext, draft: Draft, encodes: float | None
) -> dict[str, Any]:
    task, rows = draft.task, draft.reading.facts.rows
    has_text = task.text_exists
    if has_text is None and draft.store.options.get("text_field") is not None:
        has_text = draft.reading.has_texts
    prices = task.prices
    if prices.items_per_second is None:
        prices = replace(prices, items_per_second=encodes)
    return advice.advise(
        services,
        context,
        AdviceTask(
            draft.request,
            evaluation=task.evaluation,
            corpus_size=rows,
            old_encoder_runs=task.old_encoder_runs,
            text_exists=has_text,
            prices=prices,
        ),
    )


def _notes(draft: Draft) -> list[dict[str, str]]:
    """Return what a person must know before the reindexing, with codes."""
    reading = draft.reading
    notes = [{"code": note.code, "detail": note.detail} for note in reading.facts.notes]
    notes += [{"code": warning.code, "detail": warning.detail} for warning in draft.built.warnings]
    notes.append(
        {
            "code": "search-works",
            "detail": f"POST /stores/{draft.store.name}/search answers queries of the new encoder "
            "now, and writes nothing. A run is not needed for it.",
        }
    )
    if draft.promise is None:
        notes.append(
            {
                "code": "no-promise",
                "detail": "There are too few anchors to promise a recall. Add anchors to the set.",
            }
        )
    if draft.space.get("verdict") == "unknown":
        notes.append(
            {
                "code": "space-unknown",
                "detail": "It is not known whether the store has the source's vectors: there are "
                "too few rows or anchors, or the anchors are of another corpus.",
            }
        )
    if reading.undirected:
        share = len(reading.undirected) / (len(reading.undirected) + len(reading.sample))
        notes.append(
            {
                "code": "rows-without-direction",
                "detail": f"{share:.1%} of the sampled vectors are zero or not finite. A run skips "
                "and counts such rows.",
            }
        )
    if not reading.capabilities.captures_writes:
        notes.append(
            {
                "code": "writes-not-captured",
                "detail": "The store does not report writes of other clients. Stop them during the "
                "run, or run again before the cutover.",
            }
        )
    return notes


def _curve(services: Services, draft: Draft) -> ReEmbeddingCurve | None:
    """Return what encoding rows again is worth in the store; None with too few anchors, and where
    an alignment made them.
    """
    served = draft.built.served
    source, target = draft.pair
    if made_pairs.estimate_of(source.anchor_set) is not None:
        return None
    fit_weights = weighting.find_weights(services, source, target)
    method, options = str(served.method), dict(served.options or {})

    def measure() -> ReEmbeddingCurve | None:
        x, y = spaces.raw_anchors(services, source), spaces.raw_anchors(services, target)
        with services.fitting():
            return re_embedding_curve(
                method,
                x,
                y,
                options,
                weights=fit_weights.weights,
                counted=fit_weights.counted,
            )

    fit: Key = (method, canonical_json(options), *fit_weights.key)
    curve = services.cache.get_or_make(
        ("re-embedding curve", source.blob, target.blob, *fit),
        measure,
        lambda _: CACHED_CURVE_BYTES,
    )
    if curve is None or draft.promise is None:
        return curve
    return at_size(curve, draft.promise["recall"], draft.promise["index"])
