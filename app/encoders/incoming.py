"""Checks the vectors that a client sends, and the size of the answer."""

from __future__ import annotations

from torch import Tensor

from app.context import ANSWER_NUMBER_BYTES, Limits, RequestContext, Services
from app.errors import TooManyVectors, blaming
from app.maths.geometry import space as spaces


def checked_vectors(
    vectors: Tensor, *, field: str, limits: Limits, dim: int | None = None
) -> Tensor:
    """Return the vectors in float32, once their number, dimension and numbers are checked.

    Raises TooManyVectors and the vector errors, which name `field`.
    """
    if vectors.shape[0] > limits.vectors:
        raise TooManyVectors(
            f"The request has {vectors.shape[0]} vectors; at most {limits.vectors} are allowed. "
            "Send fewer.",
            field=field,
            limit=limits.vectors,
        )
    with blaming(field):
        spaces.check_vectors(vectors, dim=dim)
    return vectors.float()


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
            "Send fewer, or ask the operator to raise ANCHORAGE_MAX_VECTORS.",
            field=field,
            limit=most,
        )
    context.reserve_bytes(count * dim * number_bytes)
