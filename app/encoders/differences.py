"""Compares a client's vectors with the service's, and explains a difference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from torch import Tensor

from app.context import RequestContext, Services
from app.encoders import incoming
from app.encoders.check import (
    EQUAL,
    PRECISE_DTYPES,
    Cause,
    EncoderCheck,
    Explanation,
    find_encoder,
    make_result,
)
from app.encoders.encoding import check_inputs, encode, load_model
from app.encoders.models.base import Inputs
from app.errors import DimensionMismatch, TooManyInputs
from app.maths.anchors import drift
from app.maths.anchors.drift import NEAR_DEVIATION, SAME_DEVIATION
from app.maths.quality.metrics import unit

#: most inputs that a client sends: each is encoded about 20 times when the vectors differ
MAX_SENT_INPUTS = 64

#: least `drift.cosine_correlation` of two revisions of a model, and fewest inputs that show it
SAME_FAMILY, FEWEST_TO_TELL = 0.7, 4

#: explanations in an answer
SHOWN_EXPLANATIONS = 10


def compare_with_client(
    services: Services, context: RequestContext, name: str, inputs: Inputs, vectors: Tensor
) -> EncoderCheck:
    """Encode the inputs, and compare the vectors with the client's. Records nothing.

    Raises NotFound, TooManyInputs, DimensionMismatch, Overloaded, and the errors of
    `encode`.
    """
    encoder = find_encoder(services, context, name)
    if len(inputs.values) > MAX_SENT_INPUTS:
        raise TooManyInputs(
            f"The request has {len(inputs.values)} inputs; at most {MAX_SENT_INPUTS} are allowed, "
            "which is enough for a check. Send fewer.",
            field="inputs",
            limit=MAX_SENT_INPUTS,
        )
    theirs = incoming.checked_vectors(vectors, field="vectors", limits=services.limits)
    if len(theirs) != len(inputs.values):
        raise DimensionMismatch(
            f"The request has {len(inputs.values)} inputs and {len(theirs)} vectors. Send one "
            "vector for each.",
            field="vectors",
        )
    ours = encode(services, context, encoder, inputs.values, role=inputs.role).vectors
    measures: dict[str, object] = {"inputs": len(ours)}
    if theirs.shape == ours.shape:
        deviation = _max_deviation(ours, theirs)
        measures["max_deviation"] = deviation
        measures["mean_cosine"] = float(drift.cosines(ours, theirs).mean())
        is_precise = (encoder.identity or {}).get("dtype") in PRECISE_DTYPES
        if deviation <= (SAME_DEVIATION if is_precise else NEAR_DEVIATION):
            return make_result("unchanged", EQUAL, **measures)
    texts = check_inputs(encoder, inputs.values, limits=services.limits, field="inputs")
    departures: list[bool] = []
    context.on_departure(lambda: departures.append(True))
    with services.take(services.turns.checks, context.project):
        variants = getattr(load_model(services, encoder), "variants", lambda texts: ())(texts)
        tried = list(takewhile(lambda _: not departures, _explain(ours, theirs, variants)))
    cause, detail = _find_likely_cause(ours, theirs, tried)
    closest = sorted(tried, key=lambda each: each.max_deviation)[:SHOWN_EXPLANATIONS]
    return make_result("different", detail, likely_cause=cause, explanations=closest, **measures)


def _explain(
    ours: Tensor, theirs: Tensor, variants: Iterable[tuple[Cause, str, Tensor]]
) -> Iterator[Explanation]:
    """Undo one difference after another; `variants` are the inputs as other settings encode them.

    Compares the directions in the first dimensions, as many as both have.
    """
    dim = min(ours.shape[1], theirs.shape[1])
    cut = ""
    if ours.shape != theirs.shape:
        cut = f"{theirs.shape[1]} dimensions instead of {ours.shape[1]}: the first {dim} agree"

    def compare(cause: Cause, detail: str, made: Tensor) -> Explanation:
        deviation = _max_deviation(unit(made[:, :dim]), unit(theirs[:, :dim]))
        words = ", ".join(filter(None, (detail, cut)))
        return Explanation(cause=cause, detail=words, max_deviation=deviation)

    if cut:
        yield compare("dimensions", "", ours)
    else:
        yield compare("normalisation", "the lengths differ, the directions agree", ours)
        deviation = drift.reorder_deviation(ours, theirs)
        detail = "the vectors are equal, in another order"
        yield Explanation(cause="order", detail=detail, max_deviation=deviation)
    for cause, detail, made in variants:
        yield compare(cause, detail, made)


def _find_likely_cause(
    ours: Tensor, theirs: Tensor, tried: Sequence[Explanation]
) -> tuple[Cause, str]:
    """Return the first explanation that leaves no deviation: they begin with the simplest.

    Without one, what the similarities between the inputs say.
    """
    for each in tried:
        if each.max_deviation <= SAME_DEVIATION:
            return each.cause, each.detail
    if ours.shape == theirs.shape and _max_deviation(ours, theirs) <= NEAR_DEVIATION:
        detail = "the vectors agree to half precision: one of the two computes or stores in it"
        return "precision", detail
    for each in tried:
        if each.max_deviation <= NEAR_DEVIATION:
            return each.cause, f"{each.detail}, and one of the two uses half precision"
    if len(ours) < FEWEST_TO_TELL or not bool(theirs.any()):
        return (
            "unknown",
            f"no known cause explains the difference. Send at least {FEWEST_TO_TELL} inputs, and "
            "vectors that are not zero, for a comparison of their similarities",
        )
    likeness = drift.cosine_correlation(ours, theirs)
    if likeness >= SAME_FAMILY:
        return (
            "revision",
            f"both models find the same inputs similar (correlation {likeness:.2f}): probably "
            "another revision of the model",
        )
    return (
        "another-model",
        f"the two models find different inputs similar (correlation {likeness:.2f}): probably "
        "another model, or other inputs",
    )


def _max_deviation(ours: Tensor, theirs: Tensor) -> float:
    """Return the deviation of the worst row."""
    return float(drift.deviations(ours, theirs).max())
