"""A request's vectors, or its inputs encoded to vectors."""

from __future__ import annotations

from torch import Tensor

from app.errors import NotExactlyOne
from app.services.context import Services
from app.services.encoders.encoding import EncodedVectors, Inputs, encode
from app.services.incoming import checked_vectors
from app.services.request_context import RequestContext
from app.storage import tables


def exactly_one(
    vectors: Tensor | None, inputs: Inputs | None, *, field: str = "vectors"
) -> tuple[str, int]:
    """Return the field that the client sent, and its number of rows. Raises NotExactlyOne.

    field  the name of the field of vectors
    """
    if vectors is not None and inputs is None:
        return field, len(vectors)
    if inputs is not None and vectors is None:
        return "inputs", len(inputs.values)
    raise NotExactlyOne("Send exactly one of `vectors` and `inputs`.", field="vectors")


def vectors_or_encoded(
    services: Services,
    context: RequestContext,
    encoder: tables.EncoderRow,
    vectors: Tensor | None,
    inputs: Inputs | None,
    *,
    field: str = "vectors",
    dim: int | None = None,
) -> EncodedVectors:
    """Return the client's vectors, or encode its inputs.

    field  the name of the field of vectors
    dim    of those vectors; None: the encoder's

    Raises NotExactlyOne, the vector errors, and the errors of `encode`.
    """
    exactly_one(vectors, inputs)
    if vectors is None:
        assert inputs is not None
        return encode(services, context, encoder, inputs.values, role=inputs.role)
    return EncodedVectors(
        checked_vectors(
            vectors, field=field, limits=services.limits, dim=encoder.dim if dim is None else dim
        )
    )
