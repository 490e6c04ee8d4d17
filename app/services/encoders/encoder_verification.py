"""Compares a client's copy of an encoder with the service's, and explains a difference."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import Annotated, Literal

from pydantic import BaseModel, Field, WithJsonSchema
from torch import Tensor

from app.encoders.base import EncoderModel
from app.errors import DimensionMismatch, TooManyInputs
from app.maths.anchors import drift
from app.maths.anchors.drift import NEAR_DEVIATION, SAME_DEVIATION
from app.maths.quality.metrics import unit
from app.services import incoming
from app.services.context import Services
from app.services.encoders.encoding import Inputs, check_inputs, encode, load_model
from app.services.request_context import RequestContext
from app.storage import tables
from app.storage.queries import resources

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

#: most inputs of one verification: each is encoded about 20 times when the vectors differ
MAX_VERIFIED_INPUTS = 64

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


class VerificationReport(BaseModel):
    """How far the vectors differ. A deviation is |yours - ours| / |ours|, in the worst row."""

    matches: bool = Field(description="Whether the vectors are equal within rounding.")
    count: int = Field(description="Number of vectors compared.")
    dim: int = Field(description="Dimension of the service's vectors.")
    given_dim: int = Field(description="Dimension of the client's vectors.")
    max_deviation: float | None = Field(
        description="Largest relative deviation of a row. Null if the dimensions differ."
    )
    min_cosine: float | None = Field(
        description="Smallest cosine of a row. Null if the dimensions differ."
    )
    mean_cosine: float | None = Field(
        description="Mean cosine of the rows. Null if the dimensions differ."
    )
    likely_cause: Cause | None = Field(
        description="Likely cause of the difference. Null if the vectors match."
    )
    detail: str = Field(description="The result in words.")
    explanations: list[Explanation] = Field(description="Causes that were tried, closest first.")


def verify(
    services: Services, context: RequestContext, *, encoder: str, inputs: Inputs, vectors: Tensor
) -> VerificationReport:
    """Encode the inputs, and compare the vectors with the client's.

    Raises EncoderNotFound, TooManyInputs, DimensionMismatch, and the errors of `encode`.
    """
    with services.db.transaction() as session:
        row = resources.by_name(session, tables.EncoderRow, context.project, encoder)
    if len(inputs.values) > MAX_VERIFIED_INPUTS:
        raise TooManyInputs(
            f"The request has {len(inputs.values)} inputs; at most {MAX_VERIFIED_INPUTS} are "
            "allowed, which is enough for a verification. Send fewer.",
            field="inputs",
            limit=MAX_VERIFIED_INPUTS,
        )
    theirs = incoming.checked_vectors(vectors, field="vectors", limits=services.limits)
    if len(theirs) != len(inputs.values):
        raise DimensionMismatch(
            f"The request has {len(inputs.values)} inputs and {len(theirs)} vectors. Send one "
            "vector for each.",
            field="vectors",
        )
    ours = encode(services, context, row, inputs.values, role=inputs.role).vectors
    same_dim = theirs.shape[1] == ours.shape[1]
    deviation = _find_max_deviation(ours, theirs) if same_dim else None
    cosines = drift.cosines(ours, theirs) if same_dim else None
    if deviation is not None and deviation <= _tolerance(row):
        cause, detail, explanations = None, "the vectors are equal, except for rounding", []
    else:
        texts = check_inputs(row, inputs.values, limits=services.limits, field="inputs")
        with services.verifying():
            departures: list[bool] = []
            context.on_departure(lambda: departures.append(True))
            explanations = list(
                takewhile(
                    lambda _: not departures,
                    _explain(load_model(services, row), texts, ours, theirs),
                )
            )
        cause, detail = _find_likely_cause(ours, theirs, explanations)
        explanations.sort(key=lambda each: each.max_deviation)
    return VerificationReport(
        matches=cause is None,
        count=len(theirs),
        dim=ours.shape[1],
        given_dim=theirs.shape[1],
        max_deviation=deviation,
        min_cosine=None if cosines is None else float(cosines.min()),
        mean_cosine=None if cosines is None else float(cosines.mean()),
        likely_cause=cause,
        detail=detail,
        explanations=explanations[:10],
    )


def _tolerance(encoder: tables.EncoderRow) -> float:
    """The largest deviation of equal models: batches of another size round differently."""
    return (
        SAME_DEVIATION
        if (encoder.identity or {}).get("dtype") in ("float32", None)
        else NEAR_DEVIATION
    )


def _explain(
    model: EncoderModel, inputs: object, ours: Tensor, theirs: Tensor
) -> Iterator[Explanation]:
    """Undo one difference after another."""
    if ours.shape == theirs.shape:
        yield _explanation(
            "normalisation",
            "the lengths differ, the directions agree",
            _find_max_deviation(unit(ours), unit(theirs)),
        )
        yield _explanation(
            "order",
            "the vectors are equal, in another order",
            drift.reorder_deviation(ours, theirs),
        )
    else:
        yield from _explain_dimensions("dimensions", "", ours, theirs)
    variants = getattr(model, "variants", None)
    if variants is None:
        return
    for cause, detail, vectors in variants(inputs):
        if vectors.shape == theirs.shape:
            yield _explanation(cause, detail, _find_max_deviation(unit(vectors), unit(theirs)))
        else:
            yield from _explain_dimensions(cause, f"{detail}, ", vectors, theirs)


def _explanation(cause: Cause, detail: str, max_deviation: float) -> Explanation:
    return Explanation(cause=cause, detail=detail, max_deviation=max_deviation)


def _explain_dimensions(
    cause: Cause, prefix: str, ours: Tensor, theirs: Tensor
) -> Iterator[Explanation]:
    """Compare the first dimensions, as many as both have."""
    dim = min(ours.shape[1], theirs.shape[1])
    apart = _find_max_deviation(unit(ours[:, :dim]), unit(theirs[:, :dim]))
    yield _explanation(
        cause,
        f"{prefix}{theirs.shape[1]} dimensions instead of {ours.shape[1]}: the first {dim} agree",
        apart,
    )


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
