"""/heads and /stitch."""

from __future__ import annotations

import base64

import numpy as np
import pytest
import torch
from safetensors.torch import save

RNG = np.random.default_rng(5)
WEIGHT = RNG.normal(size=(3, 6)).tolist()
BIAS = [0.5, -0.5, 0.0]
CLASSES = ["cat", "dog", "owl"]


def file_of(**tensors) -> str:
    return base64.b64encode(
        save({name: torch.as_tensor(value).contiguous() for name, value in tensors.items()})
    ).decode()


@pytest.fixture
def make(stocked):
    """POST /heads of a head of `second`; a value of ... leaves a field out."""

    def post(**more):
        body = {
            "name": "h",
            "encoder": "second",
            "classes": CLASSES,
            "weight": WEIGHT,
            "bias": BIAS,
            **more,
        }
        return stocked.post(
            "/heads", json={key: value for key, value in body.items() if value is not ...}
        )

    return post


@pytest.fixture
def ask(stocked, make, embeddings):
    """POST /stitch of three vectors of `first` to the head of `second`."""
    assert make().status_code == 201

    def post(**more):
        body = {
            "encoder": "first",
            "head": "h",
            "anchor_set": "items",
            "vectors": embeddings["first"][:3].tolist(),
            **more,
        }
        return stocked.post(
            "/stitch", json={key: value for key, value in body.items() if value is not ...}
        )

    return post


# --- heads ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "status", "code", "field"),
    [
        ({"encoder": "unknown"}, 404, "encoder-not-found", "encoder"),
        (
            {"weight": ..., "safetensors": file_of(weight=torch.ones(3, 6))},
            422,
            "not-exactly-one",
            "bias",
        ),
        ({"bias": [1.0, 2.0]}, 422, "invalid-head", "bias"),
        ({"classes": ["cat", "dog", "cat"]}, 422, "invalid-head", "classes"),
        ({"kind": "onnx"}, 422, "invalid-head", "kind"),
        ({"encode_power": 0.5}, 422, "invalid-head", "encode_power"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_head_is_refused_and_leaves_nothing(
    make, stocked, refused, change, status, code, field
):
    rows = [2] if "classes" in change and code == "invalid-head" else None
    refused(make(**change), status, code, field, rows)
    assert stocked.get("/heads").json() == {"heads": []}
    assert stocked.delete("/anchor-sets/items").status_code == 204


def test_a_file_that_is_not_base64_is_refused(make, stocked, refused):
    refused(make(weight=..., bias=..., safetensors="not base64!"), 422, "bad-base64", "safetensors")
    assert stocked.get("/heads").json() == {"heads": []}


# --- stitch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "status", "code", "field"),
    [
        ({"head": "nothing"}, 404, "head-not-found", "head"),
        ({"encoder": "unknown"}, 404, "encoder-not-found", "encoder"),
        ({"anchor_set": "nothing"}, 404, "anchor-set-not-found", "anchor_set"),
        ({"vectors": ..., "inputs": ["x"]}, 422, "encoder-needs-vectors", "inputs"),
        ({"method": "irp", "options": {"omega": 41}}, 422, "invalid-option", "options.omega"),
        (
            {"encoder": "second", "vectors": [[1.0] * 6], "method": "irp"},
            422,
            "invalid-head",
            "method",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_wrong_requests(ask, refused, change, status, code, field):
    refused(ask(**change), status, code, field)


def test_a_relative_head_takes_no_method_and_no_other_set(make, ask, stocked, embeddings, refused):
    make(name="r", encoder=..., anchor_set="items", weight=RNG.normal(size=(3, 40)).tolist())
    refused(ask(head="r", method="irp"), 422, "invalid-head", "method")
    refused(ask(head="r", options={"ridge": 1}), 422, "invalid-head", "method")
    stocked.post(
        "/anchor-sets",
        json={"name": "other", "embeddings": {"first": embeddings["first"].tolist()}},
    )
    refused(ask(head="r", anchor_set="other"), 422, "invalid-head", "anchor_set", detail="'items'")
