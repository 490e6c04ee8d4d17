"""The roles of a set's items."""

from __future__ import annotations

import numpy as np
import pytest

DRAW = np.random.default_rng(5)


def some(k, d):
    return DRAW.normal(size=(k, d)).tolist()


def items(k):
    return {"a": some(k, 3), "b": some(k, 2)}


@pytest.fixture
def filled(client):
    """Encoders `a` (3) and `b` (2), and their set `s` of six items."""
    for name, dim in (("a", 3), ("b", 2)):
        client.post("/encoders", json={"name": name, "dim": dim})
    client.post("/anchor-sets", json={"name": "s", "embeddings": items(6)})
    return client


def test_roles_are_kept_and_shown(filled, refused):
    roles = ["query", "document", "document"]
    body = {"name": "r", "embeddings": items(3), "roles": roles}
    assert filled.post("/anchor-sets", json=body).json()["roles"] == roles
    assert filled.get("/anchor-sets/s").json()["roles"] is None
    for wrong, code, field in (
        (["query"], "unequal-anchors", "roles"),
        (["query", "document", "passage"], "invalid-request", "roles"),
    ):
        body = {"name": "t", "embeddings": items(3), "roles": wrong}
        answer = filled.post("/anchor-sets", json=body)
        assert answer.status_code == 422
        assert answer.json()["code"] == code
        assert answer.json()["field"].startswith(field)
    body = {"name": "t", "inputs": ["x"], "encoders": ["a"], "roles": ["query"]}
    body["input_type"] = "query"
    refused(filled.post("/anchor-sets", json=body), 422, "invalid-request", "input_type")
