"""OpenAI's API: how a request is written, and how an answer is read."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class EndpointEmbeddings:
    """Vectors (n, d), and the endpoint's name of their model, or None."""

    vectors: Tensor
    name: str | None


@dataclass(frozen=True)
class OpenAIDialect:
    """POST /embeddings."""

    model: str
    dim: int | None
    encoding: str = "base64"

    def build_request(self, texts: Sequence[str]) -> dict[str, Any]:
        dimensions = {} if self.dim is None else {"dimensions": self.dim}
        return {
            "model": self.model,
            "input": list(texts),
            "encoding_format": self.encoding,
            **dimensions,
        }

    def read_rows(self, answer: Any) -> list[Any]:
        """Return the vectors, not yet decoded, in the order of the texts. Raises EncoderFailed."""
        data = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(data, list) or not all(isinstance(entry, dict) for entry in data):
            raise EncoderFailed("The endpoint's answer has no list of embeddings.")
        places = [entry.get("index") for entry in data]
        whole = all(type(place) is int for place in places)
        if not whole or sorted(places) != list(range(len(data))):
            raise EncoderFailed("The endpoint's answer does not number its embeddings from 0.")
        ordered = sorted(data, key=lambda entry: int(entry["index"]))
        return [entry.get("embedding") for entry in ordered]

    def read_name(self, answer: Any) -> str | None:
        return read_label(answer.get("model"))


def read_label(value: Any) -> str | None:
    """Return a model's name that may be stored and shown, or None."""
    usable = isinstance(value, str) and 0 < len(value) <= MAX_LABEL and value.isprintable()
    return value if usable else None


def parse_json(body: bytes) -> Any:
    """Return the body's JSON value. Raises EncoderFailed."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        raise EncoderFailed("The endpoint's answer is not valid JSON.") from None


def parse_matrix(rows: Sequence[Any], count: int) -> Tensor:
    """Return the decoded vectors as float32 (count, d).

    Raises EncoderFailed unless there are `count` finite vectors of one length.
    """
    if len(rows) != count:
        raise EncoderFailed(f"The endpoint returned {len(rows)} embeddings for {count} inputs.")
    vectors = [_parse_vector(row) for row in rows]
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


def _parse_vector(row: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
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
