"""Whether a client's copy of an encoder makes the vectors that the service's makes, and if not, why."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import Annotated, Literal

from pydantic import BaseModel, Field, WithJsonSchema
from torch import Tensor

from app.encoders.base import EncoderModel
from app.errors import DimensionMismatch, TooManyInputs
from app.maths.anchors import drift
from app.maths.anchors.drift import HALF_DEVIATION, SAME_DEVIATION
from app.maths.quality.metrics import unit
from app.services import incoming
from app.services.context import Services, on_departure
from app.services.encoders.encoding import Inputs, encode, load, readable
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

#: inputs of one verification: each is encoded some twenty times when the vectors differ
MOST_INPUTS = 64

#: `drift.cosine_correlation` of a model of the same family
RELATED = 0.7
#: from fewer inputs it says nothing
TELLING = 4


class Explanation(BaseModel):
    """One way in which the two may differ, and how far they are apart once it is undone."""

    cause: Annotated[Cause, WithJsonSchema({"title": "Cause", "type": "string"})]
    detail: str
    max_deviation: float


class Verified(BaseModel):
    """How far apart the vectors are; a deviation is |yours - ours| / |ours| of the row where it is largest."""

    matches: bool
    count: int
    dim: int
    given_dim: int
    max_deviation: float | None = Field(description="null when the dimensions differ")
    min_cosine: float | None
    mean_cosine: float | None
    likely_cause: Cause | None
    detail: str
    explanations: list[Explanation] = Field(description="what was tried, the closest first")


def verify(
    services: Services, project: str, *, encoder: str, inputs: Inputs, vectors: Tensor
) -> Verified:
    """Encode the inputs and compare. Raises EncoderNotFound, TooManyInputs, DimensionMismatch, and as `encode`."""
    with services.db.transaction() as session:
        row = resources.by_name(session, tables.EncoderRow, project, encoder)
    if len(inputs.values) > MOST_INPUTS:
        raise TooManyInputs(
            f"{len(inputs.values)} inputs to verify, {MOST_INPUTS} are allowed and tell as much",
            field="inputs",
            limit=MOST_INPUTS,
        )
    given = incoming.checked_vectors(vectors, field="vectors", limits=services.limits)
    if len(given) != len(inputs.values):
        raise DimensionMismatch(
            f"{len(inputs.values)} inputs and {len(given)} vectors", field="vectors"
        )
    ours = encode(services, row, inputs.values, role=inputs.role).vectors
    same_dim = given.shape[1] == ours.shape[1]
    deviation = _apart(ours, given) if same_dim else None
    cosines = drift.cosines(ours, given) if same_dim else None
    if deviation is not None and deviation <= _same(row):
        cause, detail, explanations = None, "the same vectors, but for rounding", []
    else:
        texts = readable(row, inputs.values, limits=services.limits, field="inputs")
        with services.verifying():
            gone: list[bool] = []
            on_departure.get()(lambda: gone.append(True))
            explanations = list(
                takewhile(lambda _: not gone, _explain(load(services, row), texts, ours, given))
            )
        cause, detail = _likely(ours, given, explanations)
        explanations.sort(key=lambda each: each.max_deviation)
    return Verified(
        matches=cause is None,
        count=len(given),
        dim=ours.shape[1],
        given_dim=given.shape[1],
        max_deviation=deviation,
        min_cosine=None if cosines is None else float(cosines.min()),
        mean_cosine=None if cosines is None else float(cosines.mean()),
        likely_cause=cause,
        detail=detail,
        explanations=explanations[:10],
    )


def _same(encoder: tables.EncoderRow) -> float:
    """What batches of other sizes change, in the precision in which the model computes."""
    return (
        SAME_DEVIATION
        if (encoder.identity or {}).get("dtype") in ("float32", None)
        else HALF_DEVIATION
    )


def _explain(
    model: EncoderModel, inputs: object, ours: Tensor, given: Tensor
) -> Iterator[Explanation]:
    """Undo one difference after the other."""
    if ours.shape == given.shape:
        yield _explained(
            "normalisation", "lengths differ, directions do not", _apart(unit(ours), unit(given))
        )
        yield _explained(
            "order", "the same vectors in another order", drift.reorder_deviation(ours, given)
        )
    else:
        yield from _shorter("dimensions", "", ours, given)
    variants = getattr(model, "variants", None)
    if variants is None:
        return
    for cause, detail, vectors in variants(inputs):
        if vectors.shape == given.shape:
            yield _explained(cause, detail, _apart(unit(vectors), unit(given)))
        else:
            yield from _shorter(cause, f"{detail}, ", vectors, given)


def _explained(cause: Cause, detail: str, max_deviation: float) -> Explanation:
    return Explanation(cause=cause, detail=detail, max_deviation=max_deviation)


def _shorter(cause: Cause, also: str, ours: Tensor, given: Tensor) -> Iterator[Explanation]:
    """The longer of the two, cut to the shorter one's dimensions."""
    dim = min(ours.shape[1], given.shape[1])
    apart = _apart(unit(ours[:, :dim]), unit(given[:, :dim]))
    yield _explained(
        cause,
        f"{also}{given.shape[1]} dimensions instead of {ours.shape[1]}: the first {dim} agree",
        apart,
    )


def _likely(ours: Tensor, given: Tensor, explanations: list[Explanation]) -> tuple[Cause, str]:
    """The first explanation that leaves nothing, for they begin with the simplest; else what the geometry says."""
    exact = [each for each in explanations if each.max_deviation <= SAME_DEVIATION]
    if exact:
        return exact[0].cause, exact[0].detail
    if ours.shape == given.shape and _apart(ours, given) <= HALF_DEVIATION:
        return (
            "precision",
            "the vectors agree as far as half precision does: one of the two computes or stores in it",
        )
    near = [each for each in explanations if each.max_deviation <= HALF_DEVIATION]
    if near:
        return near[0].cause, f"{near[0].detail}, and half precision somewhere"
    if len(ours) < TELLING or not bool(given.any()):
        return (
            "unknown",
            f"no known difference explains it, and less than {TELLING} inputs, or vectors of zeros, tell no more",
        )
    alike = drift.cosine_correlation(ours, given)
    if alike >= RELATED:
        return (
            "revision",
            f"the inputs are alike and different in the same way (correlation {alike:.2f}): another revision of the model",
        )
    return (
        "another-model",
        f"the two find different inputs alike (correlation {alike:.2f}): another model, or other inputs",
    )


def _apart(ours: Tensor, given: Tensor) -> float:
    """The worst row's deviation."""
    return float(drift.deviations(ours, given).max())
