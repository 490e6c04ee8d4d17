"""Advises what to do with an index after a change of encoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import BaseModel, Field

from app.context import RequestContext, Services
from app.errors import InvalidRequest, blaming
from app.jobs import queries as jobs
from app.maths.relevance.advice import (
    ADVISED_OPTIONS,
    FEWEST_QUERIES,
    LOW_PRICE,
    AdvisedOption,
    GainOverKeep,
    IndexFacts,
    MeasuredOption,
    rank_options,
)
from app.search.scoring import embeds_texts
from app.search.weights import comparison_of, default_weight_of
from app.translate import estimate as translator_reports
from app.translate import service as apply
from app.translate.maps import FitRequest
from app.translate.service import Translation
from app.types import EncoderKind, JobKind, JobState

#: warnings that speak against any translation by these anchors
UNRELIABLE = frozenset({"useless-anchors", "foreign-anchors", "few-anchors", "made-pairs"})


Amount = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]


class AdviceFacts(BaseModel):
    """What a client knows of an index. Null means unknown."""

    evaluation: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] | None = Field(
        None,
        description="Id of a finished job of `POST /evaluate` with judgements, of the same "
        "translator.",
    )
    old_encoder_runs: bool | None = Field(
        None,
        description="Whether the old encoder still encodes queries. "
        "Null: yes if the service runs it, otherwise unknown.",
    )
    text_exists: bool | None = Field(
        None, description="Whether the items can be encoded again. Null: unknown."
    )
    price: Amount | None = Field(
        None,
        description="Price of embedding every item, as `cost` of a migration's plan says. Null: "
        "nothing where the service runs the model itself, otherwise unknown.",
    )
    seconds: Amount | None = Field(
        None, description="Seconds to embed every item, as the plan says. Null: unknown."
    )


def advise(
    services: Services,
    context: RequestContext,
    request: FitRequest,
    known: AdviceFacts,
    *,
    newest: bool = False,
) -> dict[str, Any]:
    """Return the options, best first, and what they rest on, as JSON.

    newest  take the newest evaluation of the pair; one of an earlier translator does not count

    Raises the not-found, option and vector errors, InvalidRequest and
    Overloaded.
    """
    if request.source == request.target:
        raise InvalidRequest(
            "`source` and `target` are one encoder, so there is nothing to change. Name two.",
            field="target",
        )
    # A minimum forbids to serve a bad translator, not to ask what to do about it.
    served = apply.prepare_map(services, context, Translation(request, enforces=False))
    assert served.id is not None
    assert served.pair is not None
    source, target = served.pair
    evaluation, judged = _find_evaluation(
        services, context, request, known.evaluation, served.id, newest=newest
    )
    runs = known.old_encoder_runs
    if runs is None and source.encoder.kind != EncoderKind.external:
        runs = True
    compared = comparison_of(source.encoder, target.encoder) if runs is not False else None
    runs_here = target.encoder.kind not in (EncoderKind.external, EncoderKind.openai)
    # Old scores count in native ones, unless the old encoder is gone.
    fuses = "native-fuse" in judged["results"] if runs is None else runs
    measured: dict[AdvisedOption, str] = {name: name for name in ADVISED_OPTIONS}
    measured["native"] = "native-fuse" if fuses else "native-cascade"
    facts = IndexFacts(
        source.anchor_set.size,
        reliable=not UNRELIABLE & {each.code for each in served.warnings},
        old_encoder_runs=runs,
        text_exists=known.text_exists,
        new_encoder_runs=embeds_texts(target.encoder),
        difference=compared["difference"] if compared else None,
        half_width=compared["difference"] - compared["interval"][0] if compared else 0.0,
        price=0.0 if known.price is None and runs_here else known.price,
        seconds=known.seconds,
    )
    ranked = rank_options(
        facts,
        {
            name: _measured(judged["results"][option])
            for name, option in measured.items()
            if option in judged["results"]
        },
        judged["queries"],
        {name: judged["missing"].get(option, ()) for name, option in measured.items()},
    )
    best = ranked[0]
    row = translator_reports.report_of(services, served)
    weight = (judged["fuse"] or {}).get("weight")
    names = source.encoder.name, target.encoder.name
    basis, why = _basis(judged, compared, *names, gone=runs is False)
    if facts.is_cheap and best.name == "re-embed":
        basis, why = "cost", best.reason
    elif best.name == "cascade":
        why = f"{best.reason} {why}"
    elif known.text_exists and known.seconds is None:
        why += f" If a plan to embed all costs at most {LOW_PRICE:g} and an hour, do that."
    return {
        "advice": best.name,
        "summary": f"{best.name.capitalize()} leads. {why}",
        "basis": basis,
        "comparison": compared,
        "options": [asdict(each) for each in ranked],
        "queries": judged["queries"],
        "evaluation": evaluation,
        "fuse_weight": default_weight_of(services, source, target) if weight is None else weight,
        "fidelity": translator_reports.estimate_for(row.report or {}, request.index),
        "translator": served.id,
        "method": str(served.method),
        "warnings": [each._asdict() for each in served.warnings],
    }


def _basis(
    judged: Mapping[str, Any],
    compared: Mapping[str, Any] | None,
    old: str,
    new: str,
    *,
    gone: bool,
) -> tuple[str, str]:
    """Return what the order rests on, as a code, and what is known and what would tell more."""
    queries = judged["queries"]
    if queries >= FEWEST_QUERIES:
        return "judgements", f"The order rests on {queries} judged queries."
    if compared is not None:
        low, high = compared["interval"]
        return (
            "comparison",
            f"On {compared['texts']} texts, the MRR of {new!r} less that of {old!r} is "
            f"{compared['difference']:+.3f} (95 % interval {low:+.3f} to {high:+.3f}). Judged "
            "queries tell more: POST /evaluate.",
        )
    if gone:
        return (
            "fidelity",
            f"{old!r} no longer encodes queries. {FEWEST_QUERIES} judged queries tell which option "
            "finds more: POST /evaluate.",
        )
    return (
        "fidelity",
        f"Whether {new!r} or {old!r} is better here is not known: POST /compare estimates it "
        "where the service runs both, and judged queries tell: POST /evaluate.",
    )


def _find_evaluation(
    services: Services,
    context: RequestContext,
    request: FitRequest,
    job_id: str | None,
    translator: str,
    *,
    newest: bool,
) -> tuple[str | None, Mapping[str, Any]]:
    """Return the job of an evaluation of judged queries, and its result; None, and one without a
    query, if there is none.
    """
    pair = {name: getattr(request, name) for name in ("source", "target", "anchor_set")}
    with blaming("evaluation", always=True), services.db.transaction() as session:
        if newest:
            job_id = jobs.newest_judged(session, context.project, **pair)
        job = None if job_id is None else jobs.job(session, context.project, job_id)
    if job is not None:
        result = job.result or {}
        if (
            job.kind == JobKind.evaluate
            and job.state == JobState.succeeded
            and "results" in result
            and pair.items() <= result.items()
            and result["translator"] in (None, translator)
        ):
            return job_id, result
        if not newest:
            raise InvalidRequest(
                f"The job is no finished evaluation of judgements by translator {translator}, "
                "which this request fits. Name the encoders, anchor set, method and options of "
                "the evaluation; if the anchors changed or it had no judgements, send these to "
                "POST /evaluate with `Prefer: respond-async`, and wait for the job.",
                field="evaluation",
            )
    return None, {"results": {}, "queries": 0, "fuse": None, "missing": {}}


def _measured(result: Mapping[str, Any]) -> MeasuredOption:
    over = result["over_keep"]
    gain = over and GainOverKeep(over["ndcg_10"], *over["intervals"]["ndcg_10"])
    return MeasuredOption(result["ndcg_10"], gain)
