"""Checks of the vectors and inputs that a client sends, and of the size of the answer."""

from __future__ import annotations

from torch import Tensor

from app.errors import (
    AnchorageError,
    NotExactlyOne,
    TooManyVectors,
)
from app.maths.geometry import space as spaces
from app.services.context import Limits, Services
from app.services.encoders.encoding import Encoded, Inputs, encode
from app.services.request_context import RequestContext
from app.storage import tables

#: what a number of an answer takes until it is sent: as float32, and as text or base64
ANSWER_NUMBER_BYTES = 16


def check_count(vectors: Tensor, *, field: str, limits: Limits, dim: int | None = None) -> None:
    """Whether they are few enough, and of that dimension. Raises TooManyVectors, EmptyVectors, DimensionMismatch."""
    if vectors.shape[0] > limits.vectors:
        raise TooManyVectors(
            f"{vectors.shape[0]} vectors in one request, {limits.vectors} are allowed",
            field=field,
            limit=limits.vectors,
        )
    try:
        spaces.check_shape(vectors, dim=dim)
    except AnchorageError as error:
        raise error.at(field) from None


def checked_vectors(
    vectors: Tensor, *, field: str, limits: Limits, dim: int | None = None
) -> Tensor:
    """The vectors in float32, once they are checked; errors name `field`. Raises as `check_vectors`, and TooManyVectors."""
    check_count(vectors, field=field, limits=limits)
    try:
        spaces.check_vectors(vectors, dim=dim)
    except AnchorageError as error:
        raise error.at(field) from None
    return vectors.float()


def exactly_one(vectors: Tensor | None, inputs: Inputs | None) -> tuple[str, int]:
    """Which of the two fields a client sent, and how many rows: exactly one of them. Raises NotExactlyOne."""
    if vectors is not None and inputs is None:
        return "vectors", len(vectors)
    if inputs is not None and vectors is None:
        return "inputs", len(inputs.values)
    raise NotExactlyOne("send exactly one of vectors and inputs", field="vectors")


def vectors_or_encoded(
    services: Services,
    context: RequestContext,
    encoder: tables.EncoderRow,
    vectors: Tensor | None,
    inputs: Inputs | None,
) -> Encoded:
    """The client's vectors, or its inputs encoded. Raises NotExactlyOne, the vector errors, and as `encode`."""
    field, _ = exactly_one(vectors, inputs)
    if vectors is None:
        assert inputs is not None
        return encode(services, context, encoder, inputs.values, role=inputs.role)
    return Encoded(checked_vectors(vectors, field=field, limits=services.limits, dim=encoder.dim))


def reserve_answer(
    services: Services,
    context: RequestContext,
    field: str,
    count: int,
    *,
    dim: int,
    number_bytes: int = ANSWER_NUMBER_BYTES,
) -> None:
    """Take room for an answer of `count` rows of `dim` numbers: before any work is done.

    Raises TooManyVectors when they are more than one answer may hold, Overloaded and TooMuchAtOnce for those of all.
    """
    most = services.limits.numbers // dim
    if count > most:
        raise TooManyVectors(
            f"{count} vectors would be answered with {dim} numbers each; {most} such vectors are allowed in one request",
            field=field,
            limit=most,
        )
    context.reserve_bytes(count * dim * number_bytes)
