"""Explains why a client's copy of an encoder makes other vectors than the service's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Annotated, Literal

from pydantic import BaseModel, Field, WithJsonSchema
from torch import Tensor

from app.context import Services
from app.db import tables
from app.encoders.encoding import check_inputs, load_model
from app.encoders.models.base import EncoderModel, Input
from app.maths.anchors import drift
from app.maths.anchors.drift import NEAR_DEVIATION, SAME_DEVIATION
from app.maths.quality.metrics import unit
from app.request_context import RequestContext

Cause = Literal[
    "normalisation",
    "dimensions",
    "precision",
    "order",
    "prompt",
    "pooling",
    "truncation",
    "revision",
    "another-model",
    "unknown",
]

#: least `drift.cosine_correlation` of two revisions of a model
SAME_FAMILY = 0.7
#: fewest inputs whose likeness is meaningful
FEWEST_TO_TELL = 4


class Explanation(BaseModel):
    """A possible cause, and the largest deviation once it is undone."""

    cause: Annotated[
        Cause,
        WithJsonSchema(
            {"title": "Cause", "type": "string", "description": "Code of the possible cause."}
        ),
    ]
    detail: str = Field(description="The cause in words.")
    max_deviation: float = Field(
        description="Largest relative deviation that remains if the cause is undone."
    )


def explain(
    services: Services,
    context: RequestContext,
    encoder: tables.EncoderRow,
    inputs: Sequence[Input],
    *,
    ours: Tensor,
    theirs: Tensor,
) -> tuple[Cause, str, list[Explanation]]:
    """Return the likely cause, the cause in words, and the ten closest that were tried.

    It ends early when the client leaves. Raises Overloaded.
    """
    texts = check_inputs(encoder, inputs, limits=services.limits, field="inputs")
    with services.take(services.turns.checks, context.project):
        departures: list[bool] = []
        context.on_departure(lambda: departures.append(True))
        explanations = list(
            takewhile(
                lambda _: not departures,
                _explain(load_model(services, encoder), texts, ours, theirs),
            )
        )
    cause, detail = _find_likely_cause(ours, theirs, explanations)
    explanations.sort(key=lambda each: each.max_deviation)
    return cause, detail, explanations[:10]


def _explain(
    model: EncoderModel, texts: object, ours: Tensor, theirs: Tensor
) -> Iterator[Explanation]:
    """Undo one difference after another."""
    if ours.shape == theirs.shape:
        yield _compare("normalisation", "the lengths differ, the directions agree", ours, theirs)
        yield Explanation(
            cause="order",
            detail="the vectors are equal, in another order",
            max_deviation=drift.reorder_deviation(ours, theirs),
        )
    else:
        yield _compare("dimensions", "", ours, theirs)
    for cause, detail, vectors in getattr(model, "variants", lambda texts: ())(texts):
        yield _compare(cause, detail, vectors, theirs)


def _compare(cause: Cause, detail: str, ours: Tensor, theirs: Tensor) -> Explanation:
    """Compare the directions in the first dimensions, as many as both have."""
    dim = min(ours.shape[1], theirs.shape[1])
    if ours.shape != theirs.shape:
        detail = f"{detail}, " if detail else ""
        detail += f"{theirs.shape[1]} dimensions instead of {ours.shape[1]}: the first {dim} agree"
    deviation = _find_max_deviation(unit(ours[:, :dim]), unit(theirs[:, :dim]))
    return Explanation(cause=cause, detail=detail, max_deviation=deviation)


def _find_likely_cause(
    ours: Tensor, theirs: Tensor, explanations: list[Explanation]
) -> tuple[Cause, str]:
    """The first explanation that leaves no deviation: they begin with the simplest.

    Without one, what the similarities between the inputs say.
    """
    exact = [each for each in explanations if each.max_deviation <= SAME_DEVIATION]
    if exact:
        return exact[0].cause, exact[0].detail
    if ours.shape == theirs.shape and _find_max_deviation(ours, theirs) <= NEAR_DEVIATION:
        return (
            "precision",
            "the vectors agree to half precision: one of the two computes or stores in it",
        )
    near = [each for each in explanations if each.max_deviation <= NEAR_DEVIATION]
    if near:
        return near[0].cause, f"{near[0].detail}, and one of the two uses half precision"
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


def _find_max_deviation(ours: Tensor, theirs: Tensor) -> float:
    """The deviation of the worst row."""
    return float(drift.deviations(ours, theirs).max())
