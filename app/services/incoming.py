"""Checks the vectors and inputs that a client sends, and the size of the answer."""

from __future__ import annotations

from torch import Tensor

from app.errors import (
    NotExactlyOne,
    TooManyVectors,
    blaming,
)
from app.maths.geometry import space as spaces
from app.services.context import Limits, Services
from app.services.encoders.encoding import EncodedVectors, Inputs, encode
from app.services.request_context import RequestContext
from app.storage import tables

#: bytes of a number in an answer: as float32, and as text or base64
ANSWER_NUMBER_BYTES = 16


def check_count(vectors: Tensor, *, field: str, limits: Limits, dim: int | None = None) -> None:
    """Check the number of vectors and their dimension.

    Raises TooManyVectors, EmptyVectors, DimensionMismatch.
    """
    if vectors.shape[0] > limits.vectors:
        raise TooManyVectors(
            f"The request has {vectors.shape[0]} vectors; at most {limits.vectors} are allowed. "
            "Send fewer.",
            field=field,
            limit=limits.vectors,
        )
    with blaming(field):
        spaces.check_shape(vectors, dim=dim)


def checked_vectors(
    vectors: Tensor, *, field: str, limits: Limits, dim: int | None = None
) -> Tensor:
    """Return the vectors in float32, once they are checked.

    Raises TooManyVectors and the vector errors, which name `field`.
    """
    check_count(vectors, field=field, limits=limits)
    with blaming(field):
        spaces.check_vectors(vectors, dim=dim)
    return vectors.float()


def exactly_one(vectors: Tensor | None, inputs: Inputs | None) -> tuple[str, int]:
    """Return the field that the client sent, and its number of rows. Raises NotExactlyOne."""
    if vectors is not None and inputs is None:
        return "vectors", len(vectors)
    if inputs is not None and vectors is None:
        return "inputs", len(inputs.values)
    raise NotExactlyOne("Send exactly one of `vectors` and `inputs`.", field="vectors")


def vectors_or_encoded(
    services: Services,
    context: RequestContext,
    encoder: tables.EncoderRow,
    vectors: Tensor | None,
    inputs: Inputs | None,
) -> EncodedVectors:
    """Return the client's vectors, or encode its inputs.

    Raises NotExactlyOne, the vector errors, and the errors of `encode`.
    """
    field, _ = exactly_one(vectors, inputs)
    if vectors is None:
        assert inputs is not None
        return encode(services, context, encoder, inputs.values, role=inputs.role)
    return EncodedVectors(
        checked_vectors(vectors, field=field, limits=services.limits, dim=encoder.dim)
    )


def reserve_answer(
    services: Services,
    context: RequestContext,
    field: str,
    count: int,
    *,
    dim: int,
    number_bytes: int = ANSWER_NUMBER_BYTES,
) -> None:
    """Reserve memory for an answer of `count` rows with `dim` numbers, before any work is done.

    Raises TooManyVectors when the answer exceeds the limit of one answer, Overloaded and
    TooMuchAtOnce when it exceeds the limits of all answers together.
    """
    most = services.limits.numbers // dim
    if count > most:
        raise TooManyVectors(
            f"The answer would have {count} vectors of {dim} numbers; at most {most} are allowed. "
            "Send fewer.",
            field=field,
            limit=most,
        )
    context.reserve_bytes(count * dim * number_bytes)
