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
        *(({"encode_power": power}, "invalid-option", "encode_power") for power in (-0.1, 1.5)),
        *(({"encode_power": 0.5, "ridge": ridge}, "invalid-option", "ridge") for ridge in (-1,)),
        *(
            ({field: value}, "invalid-request", field)
            for field in ("encode_power", "ridge")
            for value in ("1",)
        ),
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
        ({"encoder": ...}, 422, "missing-field", "encoder"),
        ({"vectors": ...}, 422, "not-exactly-one", "vectors"),
        ({"inputs": ["x"]}, 422, "not-exactly-one", "vectors"),
        ({"vectors": ..., "inputs": ["x"]}, 422, "encoder-needs-vectors", "inputs"),
        ({"vectors": ..., "inputs": []}, 422, "empty-vectors", "inputs"),
    ],
    ids=str,
)
def test_wrong_requests(ask, refused, change, status, code, field):
    refused(ask(**change), status, code, field)


def test_an_encoder_that_did_not_embed_the_set_is_a_conflict(ask, stocked, refused):
    stocked.post("/encoders", json={"name": "third", "dim": 8})
    refused(ask(encoder="third"), 409, "anchors-not-embedded", "anchor_set", detail="'third'")
