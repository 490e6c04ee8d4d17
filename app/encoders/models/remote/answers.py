"""Reads the answers of OpenAI's API for embeddings."""

from __future__ import annotations

import base64
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from app.errors import EncoderFailed

#: largest dimension of an endpoint's vectors
ENDPOINT_MAX_DIM = 8_192
#: largest number of characters in a model's name
MAX_LABEL = 200


class _Embedding(BaseModel):
    """The vector of the input `index`: numbers, or little-endian float32 in base64."""

    model_config = ConfigDict(strict=True)

    index: int
    embedding: str | Annotated[list[float], Field(fail_fast=True)]

    def read(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return the vector. Raises ValueError for what is no base64 of float32."""
        if isinstance(self.embedding, str):
            packed = base64.b64decode(self.embedding, validate=True)
            return np.frombuffer(packed, "<f4").astype(np.float32)
        with np.errstate(over="ignore"):
            return np.array(self.embedding, np.float64).astype(np.float32)


class _Answer(BaseModel):
    """Validation stops at the first wrong entry: a hostile answer may have millions."""

    data: Annotated[list[_Embedding], Field(fail_fast=True)]
    model: Any = None


def read_answer(body: bytes, count: int) -> tuple[Tensor, str | None]:
    """Return the vectors (count, d), float32, in the order of the inputs, and the model's name;
    None for a name that may not be stored and shown.

    Raises EncoderFailed unless there are `count` finite vectors of one length.
    """
    try:
        answer = _Answer.model_validate_json(body)
        rows = {each.index: each.read() for each in answer.data}
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"][:3])) or "the body"
        raise EncoderFailed(
            "The endpoint's answer is no list of embeddings in OpenAI's format "
            f"(`{place}`: {first['type']})."
        ) from None
    except ValueError:
        raise EncoderFailed(
            "An embedding of the endpoint is not valid base64 of float32 numbers."
        ) from None
    if len(answer.data) != count or set(rows) != set(range(count)):
        raise EncoderFailed(
            f"The endpoint returned {len(answer.data)} embeddings for {count} inputs, or did not "
            "number them from 0."
        )
    if not 1 <= len(rows[0]) <= ENDPOINT_MAX_DIM or len({len(row) for row in rows.values()}) > 1:
        raise EncoderFailed(
            "The endpoint's embeddings must all have one length "
            f"from 1 to {ENDPOINT_MAX_DIM} numbers."
        )
    matrix = np.stack([rows[place] for place in range(count)])
    if not np.isfinite(matrix).all():
        raise EncoderFailed(
            "The endpoint's embeddings contain NaN, infinity or a value beyond float32."
        )
    name = answer.model
    is_usable = isinstance(name, str) and 0 < len(name) <= MAX_LABEL and name.isprintable()
    return torch.from_numpy(matrix), name if is_usable else None
