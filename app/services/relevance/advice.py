"""Advises what to do with an index after a change of encoder."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, get_args

from app.errors import InvalidRequest, blaming
from app.maths.quality.estimate import LARGEST_INDEX, SMALLEST_INDEX
from app.maths.relevance.advice import (
    FEWEST_FOR_FUSE,
    FEWEST_QUERIES,
    UNIT_COSTS,
    AdvisedOption,
    GainOverKeep,
    IndexFacts,
    MeasuredOption,
    RankedOption,
    rank_options,
)
from app.maths.relevance.options import NATIVE_COUNT, SearchOption
from app.services.context import Services
from app.services.relevance.comparison import comparison_of
from app.services.relevance.native_order import embeds_texts
from app.services.relevance.rescoring import default_weight_of
from app.services.request_context import RequestContext
from app.services.serving import apply
from app.services.serving.apply import ServedMap, Translation
from app.services.translators import translator_reports, translators
from app.storage import tables
from app.storage.queries import jobs, resources
from app.types import EncoderKind, JobKind, JobState

#: warnings that speak against any translation by these anchors
UNRELIABLE = frozenset({"useless-anchors", "foreign-anchors", "few-anchors", "made-pairs"})


@dataclass(frozen=True)
class Prices:
    """What encoding and writing cost; None: not known.

    items_per_second  that the new encoder encodes
    """

    tokens_per_item: float | None = None
    price_per_million_tokens: float | None = None
    price_per_million_writes: float = 0.0
    items_per_second: float | None = None


@dataclass(frozen=True, eq=False)
class AdviceTask:
    """A request for advice, and what the client knows.

    evaluation  a finished job that has measured judged queries
    """

    request: translators.FitRequest
    evaluation: str | None = None
    corpus_size: int | None = None
    old_encoder_runs: bool | None = None
    text_exists: bool | None = None
    prices: Prices = Prices()


def advise(services: Services, context: RequestContext, task: AdviceTask) -> dict[str, Any]:
    """Return the options, best first, and what they rest on, as JSON.

    Raises the not-found, option and vector errors, JobNotFound, InvalidRequest and
    Overloaded.
    """
    if task.request.source == task.request.target:
        raise InvalidRequest(
            "`source` and `target` are one encoder, so there is nothing to change. Name two.",
            field="target",
        )
    # A minimum forbids to serve a bad translator, not to ask what to do about it.
    served = apply.prepare_map(services, context, Translation(task.request, enforces=False))
    assert served.id is not None
    evaluation = _measure(services, context, task, served.id)
    queries, weight = evaluation["queries"], (evaluation["fuse"] or {}).get("weight")
    assert served.pair is not None
    source, target = served.pair
    runs = _runs(source.encoder, task.old_encoder_runs)
    native = _native_option(runs, evaluation["results"])
    measurements = _read_measurements(evaluation["results"], native)
    if task.corpus_size is None:
        task = replace(task, corpus_size=source.store_size)
    row = translators.find_with_report(
        services, context.project, served.id, between=(source.id, target.id)
    )
    compared = comparison_of(source.encoder, target.encoder) if runs is not False else None
    ranked = rank_options(
        _facts(task, source, target, served, compared),
        measurements,
        queries,
    )
    if weight is None:
        weight, _ = default_weight_of(services, source, target)

    missing = {**evaluation["missing"], "native": evaluation["missing"].get(native, ())}

    def describe(option: RankedOption) -> dict[str, Any]:
        return {
            "name": option.name,
            "possible": option.obstacle is None,
            "reason": option.obstacle
            or _explain(option, queries, weight, missing, compared is not None),
            "ndcg_10": option.quality,
            "over_keep": None if option.gain is None else asdict(option.gain),
            "certainty": option.certainty,
            **_costs(option.name, task),
        }

    return {
        "advice": ranked[0].name,
        "summary": _summarise(ranked[0], task, queries, compared, (source, target)),
        "basis": "judgements"
        if queries >= FEWEST_QUERIES
        else "comparison"
        if compared
        else "fidelity",
        "comparison": compared,
        "options": [describe(each) for each in ranked],
        "queries": queries,
        "fuse_weight": weight,
        "fidelity": translator_reports.estimate_for(row.report or {}, _index(task)),
        "translator": served.id,
        "method": str(served.method),
        "warnings": [each._asdict() for each in served.warnings],
    }


def advise_by_records(
    services: Services, context: RequestContext, task: AdviceTask
) -> tuple[dict[str, Any], str | None]:
    """Return the advice by the newest evaluation of the pair, with the id of its job; without one
    as `advise`, and None.

    An evaluation of an earlier translator does not count. Raises as `advise`.
    """
    request = task.request
    assert request.source is not None
    with services.db.transaction() as session:
        evaluation = jobs.newest_judged(
            session,
            context.project,
            source=request.source,
            target=request.target,
            anchor_set=request.anchor_set,
        )
    if evaluation is not None:
        try:
            return advise(services, context, replace(task, evaluation=evaluation)), evaluation
        except InvalidRequest as error:
            if error.field != "evaluation":
                raise
    return advise(services, context, task), None


def _index(task: AdviceTask) -> int | None:
    """Return the size of the index to estimate for; a corpus may exceed what can be estimated."""
    size = task.corpus_size
    if task.request.index is not None or size is None:
        return task.request.index
    return min(max(size, SMALLEST_INDEX), LARGEST_INDEX)


def _facts(
    task: AdviceTask,
    source: tables.SpaceRow,
    target: tables.SpaceRow,
    served: ServedMap,
    compared: Mapping[str, Any] | None,
) -> IndexFacts:
    return IndexFacts(
        source.anchor_set.size,
        reliable=not UNRELIABLE & {each.code for each in served.warnings},
        old_encoder_runs=_runs(source.encoder, task.old_encoder_runs),
        text_exists=task.text_exists,
        new_encoder_runs=embeds_texts(target.encoder),
        difference=None if compared is None else compared["difference"],
        half_width=0.0 if compared is None else compared["difference"] - compared["interval"][0],
    )


def _runs(encoder: tables.EncoderRow, client_answer: bool | None) -> bool | None:
    """Return whether the old encoder runs: the client's word, or whether the service runs it."""
    if client_answer is None and encoder.kind != EncoderKind.external:
        return True
    return client_answer


def _measure(
    services: Services, context: RequestContext, task: AdviceTask, translator: str
) -> Mapping[str, Any]:
    """Return the evaluation of judged queries, without any if the task has none."""
    if task.evaluation is not None:
        return _find_evaluation(services, context, task, translator)
    return {"results": {}, "queries": 0, "fuse": None, "missing": {}}


def _find_evaluation(
    services: Services, context: RequestContext, task: AdviceTask, translator: str
) -> dict[str, Any]:
    """Return the result of a job of /evaluate."""
    assert task.evaluation is not None
    with blaming("evaluation", always=True), services.db.transaction() as session:
        job = resources.job(session, context.project, task.evaluation)
    result = job.result or {}
    if job.kind != JobKind.evaluate or job.state != JobState.succeeded or "results" not in result:
        raise InvalidRequest(
            "The job is no finished evaluation of judgements. Send judgements to POST /evaluate "
            "with `Prefer: respond-async`, and wait for the job.",
            field="evaluation",
        )
    request = task.request
    if any(result[name] != getattr(request, name) for name in ("source", "target", "anchor_set")):
        raise InvalidRequest(
            f"The evaluation is of {result['source']} -> {result['target']} by "
            f"{result['anchor_set']}. Name the same encoders and anchor set.",
            field="evaluation",
        )
    if result["translator"] not in (None, translator):
        raise InvalidRequest(
            f"The evaluation is of translator {result['translator']}, and this request fits "
            f"{translator}: the anchors changed, or the method or its options differ. "
            "Send the same ones, or send the judgements to POST /evaluate again.",
            field="evaluation",
        )
    return dict(result)


def _native_option(old_encoder_runs: bool | None, measured: Container[str]) -> SearchOption:
    """Return how native scores are used: with old ones, unless the old encoder is gone."""
    if old_encoder_runs is None:
        old_encoder_runs = "native-fuse" in measured
    return "native-fuse" if old_encoder_runs else "native-cascade"


def _read_measurements(
    results: Mapping[str, Any], native: SearchOption
) -> dict[AdvisedOption, MeasuredOption]:
    """Return the measured options; `native` as the option that is named."""
    measurements: dict[AdvisedOption, MeasuredOption] = {}
    for name in get_args(AdvisedOption):
        result = results.get(native if name == "native" else name)
        if result is not None:
            over = result["over_keep"]
            gain = (
                None
                if over is None
                else GainOverKeep(over["ndcg_10"], *over["intervals"]["ndcg_10"])
            )
            measurements[name] = MeasuredOption(result["ndcg_10"], gain)
    return measurements


def _summarise(
    best: RankedOption,
    task: AdviceTask,
    queries: int,
    compared: Mapping[str, Any] | None,
    sides: tuple[tables.SpaceRow, tables.SpaceRow],
) -> str:
    """Return the best option, what the order hinges on, and what it takes to know more."""
    advised = f"The best possible option is {best.name} (certainty: {best.certainty})."
    source, target = (repr(side.encoder.name) for side in sides)
    if queries >= FEWEST_QUERIES:
        return f"{advised} The order rests on {queries} judged queries."
    to_know = "Judged queries decide between the options: POST /evaluate."
    if _runs(sides[0].encoder, task.old_encoder_runs) is False:
        again = (
            "its items cannot be encoded again"
            if task.text_exists is False
            else "encoding the items again costs more and finds more"
        )
        return (
            f"{advised} {source} no longer encodes queries. A cascade searches its index, and "
            f"{again}. {to_know}"
        )
    if compared is not None:
        old, new = compared["mrr"]
        low, high = compared["interval"]
        where = f" of the store {compared['store']!r}" if compared["store"] else ""
        return (
            f"{advised} On {compared['texts']} texts{where}, {target} has an MRR of {new:.3f} and "
            f"{source} of {old:.3f}, a difference of {new - old:+.3f} (95 % interval {low:+.3f} to "
            f"{high:+.3f}). The gains are those of such encoders on judged collections. {to_know}"
        )
    return (
        f"{advised} It hinges on whether {target} or {source} is better for this corpus, which is "
        "not known. POST /compare estimates it on 250 texts, where the service runs both. "
        f"{to_know}"
    )


def _costs(name: AdvisedOption, task: AdviceTask) -> dict[str, float | None]:
    """Return what an option costs once, and for each query; None: not known."""
    writes_per_item, encodings_per_item, per_query = UNIT_COSTS[name]
    writes = _times(task.corpus_size, writes_per_item)
    encodings = _times(task.corpus_size, encodings_per_item)
    prices = task.prices
    seconds: float | None = 0.0
    if encodings_per_item:
        rate = prices.items_per_second
        seconds = None if rate is None or encodings is None else encodings / rate
    elif writes_per_item:
        seconds = None  # depends on the store
    price = _price(writes, prices.price_per_million_writes)
    if encodings_per_item:
        each = prices.tokens_per_item
        tokens = None if encodings is None or each is None else encodings * each
        encoding = _price(tokens, prices.price_per_million_tokens)
        price = None if price is None or encoding is None else price + encoding
    texts = float(NATIVE_COUNT) if name == "native" else 0.0
    if name == "native":
        per_query = 1 if task.old_encoder_runs is False else 2
    return {
        "writes": writes,
        "encodings": encodings,
        "encodings_per_query": per_query,
        "texts_per_query": texts,
        "seconds": seconds,
        "price": price,
        "price_per_thousand_queries": _price(
            None if prices.tokens_per_item is None else 1_000 * texts * prices.tokens_per_item,
            prices.price_per_million_tokens,
        )
        if texts
        else 0.0,
    }


def _times(count: int | None, factor: int) -> int | None:
    """Return the product; 0 for a factor of 0, even if the count is unknown."""
    if factor == 0:
        return 0
    return None if count is None else count * factor


def _price(units: float | None, per_million: float | None) -> float | None:
    if units == 0:
        return 0.0
    return None if units is None or per_million is None else units / 1e6 * per_million


def _explain(
    option: RankedOption,
    queries: int,
    weight: float,
    missing: Mapping[str, Sequence[str]],
    compared: bool,
) -> str:
    """Return one or two sentences about a possible option: why it stands where it does.

    missing  for each option that the judgements could not measure, the fields that it lacks
    compared  whether there is a comparison of the encoders
    """
    if option.name == "keep":
        return (
            "The old encoder searches its own index. It needs no work, so another option has to be "
            "measurably better."
        )
    if option.certainty == "measured" and option.gain is not None:
        word = "better" if option.gain.low > 0 else "worse"
        return f"It is {word} than keep on {queries} judged queries."
    if option.certainty == "expected":
        does, elsewhere = _EXPECTED[option.name]
        return does.format(weight=weight) + ("" if compared else elsewhere)
    if option.certainty == "unknown":
        return _why_unknown(option.name, missing, compared)
    if queries < FEWEST_QUERIES:
        return (
            f"It takes at least {FEWEST_QUERIES} judged queries to compare it with keep, and there "
            f"are {queries}: the order is the one without judgements."
        )
    if option.gain is None:
        return (
            "keep was not measured, so it is not known whether this is better. To measure keep, "
            "send the judged queries by the old encoder as `old_queries`."
        )
    return f"{queries} judged queries do not decide whether it is better than keep."


#: what an option does, and what it gained elsewhere by its default weight without a comparison
_EXPECTED: Mapping[AdvisedOption, tuple[str, str]] = {
    "fuse": (
        "The old scores count, and those of translations with the weight {weight:g}.",
        " Elsewhere, with anchors of the corpus, it cost up to .017 nDCG@10 where the new encoder "
        "is much worse, and gained up to .062.",
    ),
    "native": (
        "The new encoder embeds the 20 candidates that the old one finds, and both scores count. "
        "No anchors are needed.",
        " Elsewhere it cost up to .04 nDCG@10 where the new encoder is much worse, and gained up "
        "to .074.",
    ),
    "re-embed": (
        "It searches with the new encoder alone. Elsewhere it gained or cost as much nDCG@10 as "
        "the MRR of the comparison differs, within .1.",
        "",
    ),
}


def _why_unknown(name: AdvisedOption, missing: Mapping[str, Sequence[str]], compared: bool) -> str:
    if missing.get(name):
        fields = " and ".join(f"`{field}`" for field in missing[name])
        return f"It was not measured. To measure it, send {fields} with the judgements."
    if name == "fuse":
        return (
            f"Elsewhere it was measured with at least {FEWEST_FOR_FUSE} anchors and no warning "
            "against them, which is not so here."
        )
    if name == "native":
        return (
            "The new encoder embeds the 20 best candidates of a cascade, or of keep where the old "
            "encoder runs. It needs their texts: those of a store by its `text_field`, or `texts` "
            "of POST /rescore."
        )
    if compared:
        return (
            "A translation has part of what the new encoder gains. How much, only judgements tell."
        )
    return (
        "Its quality is not known: fidelity does not tell whether the new encoder is better for "
        "your corpus."
    )
