"""/anchor-sets/{name}/items, and the roles of items."""

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


def append(client, body, **more):
    return client.post("/anchor-sets/s/items", json=body, **more)


def test_items_are_appended_and_every_answer_says_the_version(filled):
    vectors = some(2, 3)
    body = {"encoder": "a", "anchor_set": "s", "vectors": vectors}
    before = filled.post("/relative", json=body).json()
    fit = {"source": "a", "target": "b", "anchor_set": "s", "method": "ridge"}
    old = filled.post("/translators", json=fit).json()
    answer = append(filled, {"embeddings": items(3)})
    assert answer.status_code == 201, answer.text
    made = answer.json()
    assert (made["size"], made["version"], made["encoders"]) == (9, 2, ["a", "b"])
    assert filled.get("/anchor-sets/s").json() == made
    del made["roles"]  # lists leave them out
    assert filled.get("/anchor-sets").json() == {"anchor_sets": [made]}
    after = filled.post("/relative", json=body)
    assert (before["dim"], before["anchor_set_version"]) == (6, 1)
    assert (after.json()["dim"], after.json()["anchor_set_version"]) == (9, 2)
    as_npy = filled.post("/relative", json=body, headers={"Accept": "application/x-npy"})
    assert as_npy.headers["anchorage-anchor-set-version"] == "2"
    new = filled.post("/translators", json=fit).json()
    assert (old["anchor_set_version"], new["anchor_set_version"]) == (1, 2)
    assert filled.get(f"/translators/{old['id']}").json() == old


def test_relative_vectors_of_the_old_version_are_refused_by_the_new_one(filled, refused):
    body = {"encoder": "a", "anchor_set": "s", "vectors": some(1, 3)}
    relative = filled.post("/relative", json=body).json()["vectors"]
    append(filled, {"embeddings": items(1)})
    decode = {"target": "b", "anchor_set": "s", "relative": relative, "method": "irp-ridge"}
    refused(filled.post("/translate", json=decode), 422, "dimension-mismatch", "relative")


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({}, "missing-field", "embeddings"),
        ({"embeddings": {"a": [[1, 2, 3]]}}, "missing-field", "embeddings"),
        ({"embeddings": {"a": [[1, 2]], "b": [[1, 2]]}}, "dimension-mismatch", "embeddings.a"),
        ({"inputs": ["x"]}, "encoder-needs-vectors", "inputs"),
    ],
)
def test_a_wrong_append_is_refused_and_changes_nothing(filled, refused, body, code, field):
    before = filled.get("/anchor-sets/s").json()
    refused(append(filled, body), 422, code, field)
    assert filled.get("/anchor-sets/s").json() == before


def test_roles_are_kept_and_shown(filled, refused):
    roles = ["query", "document", "document"]
    body = {"name": "r", "embeddings": items(3), "roles": roles}
    assert filled.post("/anchor-sets", json=body).json()["roles"] == roles
    assert filled.get("/anchor-sets/s").json()["roles"] is None
    longer = filled.post(
        "/anchor-sets/r/items", json={"embeddings": items(1), "roles": ["query"]}
    ).json()
    assert longer["roles"] == [*roles, "query"]
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
