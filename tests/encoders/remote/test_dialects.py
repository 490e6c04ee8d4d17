"""Bodies without valid vectors."""

from __future__ import annotations

import base64

import numpy as np
import pytest
import torch

from app.errors import EncoderFailed
from tests.encoders.remote.endpoints import (
    DIM,
    VECTOR,
    correct_body,
    embed,
    embeddings_body,
    expected_vectors,
    http_response,
    load_then_break,
    openai_body,
    send_bytes,
)

BODIES = {
    "empty": b"",
    "half of it": correct_body(2)[:-20],
    "deep JSON": b"[" * 100_000 + b"]" * 100_000,
    "data null": b'{"data": null}',
    "data of lists": openai_body([VECTOR, VECTOR]),
    "too few vectors": embeddings_body(VECTOR),
    "the same index": openai_body([{"index": 0, "embedding": VECTOR}] * 2),
    "index beyond": openai_body([{"index": i, "embedding": VECTOR} for i in (1, 2)]),
    "index bool": openai_body([{"index": i, "embedding": VECTOR} for i in (False, True)]),
    "embedding null": embeddings_body(VECTOR, None),
    "embedding of another length": embeddings_body(VECTOR, VECTOR[:-1]),
    "texts as numbers": embeddings_body(VECTOR, ["1"] * DIM),
    "bool as number": embeddings_body(VECTOR, [True] * DIM),
    "NaN": embeddings_body(VECTOR, [float("nan")] * DIM),
    "beyond float64": embeddings_body(VECTOR, VECTOR).replace(str(VECTOR[0]).encode(), b"1e999"),
    "beyond float32": embeddings_body(VECTOR, [1e300] * DIM),
    "base64 with other letters": embeddings_body("AAAA*" * 32, "AAAA" * 32),
    "base64 of broken floats": embeddings_body("AAAA" * 33, "AAAA" * 33),
    "base64 of nothing": embeddings_body("", ""),
    "base64 of NaN": embeddings_body(*[base64.b64encode(np.full(DIM, np.nan, "<f4")).decode()] * 2),
    "another model": embeddings_body(VECTOR, VECTOR, model="other"),
}


def test_a_correct_body_is_accepted(endpoint):
    model = load_then_break(endpoint, send_bytes(http_response(correct_body(2))))
    assert torch.equal(embed(model, ["a", "b"]), expected_vectors(["anything"] * 2))


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_an_invalid_body_fails_without_a_retry(endpoint, body):
    model = load_then_break(endpoint, send_bytes(http_response(body)))
    with pytest.raises(EncoderFailed, match="endpoint") as caught:
        embed(model, ["a", "b"])
    assert len(endpoint.seen) == 2
    assert caught.value.__cause__ is None
