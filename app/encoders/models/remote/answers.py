"""Reads the answers of OpenAI's API for embeddings."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
import torch
from torch import Tensor

from app.errors import EncoderFailed

#: largest dimension of an endpoint's vectors
ENDPOINT_MAX_DIM = 8_192
#: largest number of characters in a model's name
MAX_LABEL = 200


def read_answer(body: bytes, count: int) -> tuple[Tensor, str | None]:
    """Return the vectors (count, d), float32, in the order of the inputs, and the model's name.

    Raises EncoderFailed unless there are `count` finite vectors of one length.
    """
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise EncoderFailed("The endpoint's answer is not valid JSON.") from None
    return _read_matrix(_read_rows(answer), count), read_label(answer.get("model"))


def read_label(value: Any) -> str | None:
    """Return a model's name that may be stored and shown, or None."""
    usable = isinstance(value, str) and 0 < len(value) <= MAX_LABEL and value.isprintable()
    return value if usable else None


def _read_rows(answer: Any) -> list[Any]:
    """Return the vectors, not yet decoded, in the order of the inputs."""
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, list) or not all(isinstance(entry, dict) for entry in data):
        raise EncoderFailed("The endpoint's answer has no list of embeddings.")
    rows = {entry.get("index"): entry.get("embedding") for entry in data if _has_place(entry)}
    if len(rows) != len(data) or not all(place in rows for place in range(len(data))):
        raise EncoderFailed("The endpoint's answer does not number its embeddings from 0.")
    return [rows[place] for place in range(len(data))]


def _has_place(entry: dict[str, Any]) -> bool:
    return type(entry.get("index")) is int  # bool is a subclass


def _read_matrix(rows: Sequence[Any], count: int) -> Tensor:
    if len(rows) != count:
        raise EncoderFailed(f"The endpoint returned {len(rows)} embeddings for {count} inputs.")
    vectors = [_read_vector(row) for row in rows]
    dim = len(vectors[0])
    if not 1 <= dim <= ENDPOINT_MAX_DIM or any(len(vector) != dim for vector in vectors):
        raise EncoderFailed(
            "The endpoint's embeddings must all have one length "
            f"from 1 to {ENDPOINT_MAX_DIM} numbers."
        )
    matrix = np.stack(vectors)
    if not np.isfinite(matrix).all():
        raise EncoderFailed(
            "The endpoint's embeddings contain NaN, infinity or a value beyond float32."
        )
    return torch.from_numpy(matrix)


def _read_vector(row: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    if isinstance(row, str):
        try:
            return np.frombuffer(base64.b64decode(row, validate=True), "<f4").astype(np.float32)
        except ValueError:
            raise EncoderFailed(
                "An embedding of the endpoint is not valid base64 of float32 numbers."
            ) from None
    # The types are compared exactly: bool is a subclass of int, and numpy parses strings.
    if not isinstance(row, list) or not set(map(type, row)) <= {int, float}:
        raise EncoderFailed("An embedding of the endpoint is neither base64 nor a list of numbers.")
    with np.errstate(over="ignore"):
        return np.array(row, np.float64).astype(np.float32)
