"""Answers of endpoints without valid vectors."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from app.encoders.models.remote.encoder import read_answer
from app.errors import EncoderFailed
from tests.encoders.models.remote.endpoints import DIM, VECTOR, correct_body


def answer(*embeddings):
    return {"data": [{"index": i, "embedding": each} for i, each in enumerate(embeddings)]}


def numbered(*indices):
    return {"data": [{"index": index, "embedding": VECTOR} for index in indices]}


ANSWERS = {
    "data null": {"data": None},
    "data of lists": {"data": [VECTOR, VECTOR]},
    "too few vectors": answer(VECTOR),
    "the same index": numbered(0, 0),
    "index beyond": numbered(1, 2),
    "index bool": numbered(False, True),
    "embedding null": answer(VECTOR, None),
    "embedding of another length": answer(VECTOR, VECTOR[:-1]),
    "texts as numbers": answer(VECTOR, ["1"] * DIM),
    "bool as number": answer(VECTOR, [True] * DIM),
    "beyond float32": answer(VECTOR, [1e300] * DIM),
    "base64 with other letters": answer("AAAA*" * 32, "AAAA" * 32),
    "base64 of broken floats": answer("AAAA" * 33, "AAAA" * 33),
    "base64 of nothing": answer("", ""),
    "base64 of NaN": answer(*[base64.b64encode(np.full(DIM, np.nan, "<f4")).decode()] * 2),
}
BODIES = [b"", correct_body(2)[:-20], b"[" * 100_000 + b"]" * 100_000]
BODIES += [each.encode() for each in ("NaN", "1e999", json.dumps(answer(VECTOR, [float("nan")])))]


@pytest.mark.parametrize("name", ANSWERS)
def test_an_invalid_answer_is_refused(name):
    with pytest.raises(EncoderFailed, match=r"endpoint"):
        read_answer(json.dumps(ANSWERS[name]).encode(), 2)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body[:20])
def test_a_body_without_valid_json_is_refused(body):
    with pytest.raises(EncoderFailed, match="endpoint") as caught:
        read_answer(body, 2)
    assert caught.value.__cause__ is None
