"""/relative."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def ask(stocked, embeddings):
    def post(**more):
        body = {
            "encoder": "first",
            "anchor_set": "items",
            "vectors": embeddings["first"][:3].tolist(),
            **more,
        }
        return stocked.post(
            "/relative", json={key: value for key, value in body.items() if value is not ...}
        )

    return post


def cosines(vectors, anchors):
    mean = anchors.mean(axis=0)
    unit = (anchors - mean) / np.linalg.norm(anchors - mean, axis=1, keepdims=True)
    centred = vectors - mean
    return centred / np.linalg.norm(centred, axis=1, keepdims=True) @ unit.T


def test_relative_vectors_are_the_centred_cosines_to_the_anchors(ask, embeddings):
    vectors = np.random.default_rng(0).normal(size=(7, 8))
    answer = ask(vectors=vectors.tolist())
    assert answer.status_code == 200
    assert (answer.json()["count"], answer.json()["dim"], answer.json()["flags"]) == (7, 40, [])
    np.testing.assert_allclose(
        answer.json()["vectors"], cosines(vectors, embeddings["first"]), atol=1e-5
    )


@pytest.mark.parametrize(
    ("options", "code", "field"),
    [
        ({"encode_power": 1.5}, "invalid-option", "encode_power"),
        ({"ridge": 1}, "unknown-option", "ridge"),  # it would have no effect
    ],
    ids=str,
)
def test_a_wrong_power_or_ridge_is_refused(ask, refused, options, code, field):
    refused(ask(**options), 422, code, field)


@pytest.mark.parametrize(
    ("change", "status", "code", "field"),
    [
        ({"encoder": "unknown"}, 404, "encoder-not-found", "encoder"),
        ({"anchor_set": "nothing"}, 404, "anchor-set-not-found", "anchor_set"),
        ({"vectors": ..., "inputs": ["x"]}, 422, "encoder-needs-vectors", "inputs"),
    ],
    ids=str,
)
def test_wrong_requests(ask, refused, change, status, code, field):
    refused(ask(**change), status, code, field)
