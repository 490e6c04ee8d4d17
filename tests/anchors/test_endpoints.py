"""/anchor-sets."""

from __future__ import annotations

import numpy as np
import pytest

RNG = np.random.default_rng(3)


@pytest.fixture
def pair(client):
    """Encoders `a` of dimension 3 and `b` of dimension 2, no anchors yet."""
    for name, dim in (("a", 3), ("b", 2)):
        assert client.post("/encoders", json={"name": name, "dim": dim}).status_code == 201
    return client


def some(k, d):
    return RNG.normal(size=(k, d)).tolist()


def put(client, vectors, *, name="items", encoder="second"):
    return client.put(f"/anchor-sets/{name}/embeddings/{encoder}", json={"vectors": vectors})


# --- good -----------------------------------------------------------------------------------------


def test_another_encoder_is_added_later_and_serves(pair):
    pair.post("/anchor-sets", json={"name": "s", "embeddings": {"a": some(5, 3)}})
    answer = put(pair, some(5, 2), name="s", encoder="b")
    assert answer.status_code == 201
    assert answer.json()["encoders"] == ["a", "b"]
    assert pair.get("/anchor-sets/s").json() == answer.json()
    body = {"source": "a", "target": "b", "anchor_set": "s", "vectors": some(2, 3)}
    assert pair.post("/translate", json=body).json()["dim"] == 2


# --- bad ------------------------------------------------------------------------------------------


TWO = [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        ({"embeddings": {"a": [[1, 2, 3]] * 5}}, 422, "degenerate-anchors", "embeddings.a"),
        ({"embeddings": {"a": TWO, "b": [[1, 2]] * 3}}, 422, "unequal-anchors", "embeddings.b"),
        ({"embeddings": {"a": TWO, "no": TWO}}, 404, "encoder-not-found", "embeddings.no"),
        (
            {"embeddings": {"a": TWO}, "inputs": ["x", "y", "z"]},
            422,
            "unequal-anchors",
            "embeddings.a",
        ),
        ({"embeddings": {"a": TWO}, "encoders": ["a"]}, 422, "invalid-request", "encoders"),
        ({"inputs": ["x", "y"], "encoders": ["a"]}, 422, "encoder-needs-vectors", "inputs"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_makes_no_set_is_refused_and_leaves_nothing(pair, refused, body, status, code, field):
    refused(pair.post("/anchor-sets", json={"name": "s", **body}), status, code, field)
    refused(pair.get("/anchor-sets/s"), 404, "anchor-set-not-found", "name")
    assert pair.delete("/encoders/a").status_code == 204  # nothing of the failed set refers to it


def test_embeddings_of_another_number_of_items_are_refused(stocked, refused):
    stocked.post("/encoders", json={"name": "third", "dim": 2})
    answer = put(stocked, some(39, 2), encoder="third")
    refused(answer, 409, "anchor-count-mismatch", "vectors", detail="40")
    assert stocked.get("/anchor-sets/items").json()["encoders"] == ["first", "second"]


def test_unknown_names_in_the_path_say_which_one(stocked, refused):
    refused(put(stocked, some(40, 6), name="nothing"), 404, "anchor-set-not-found", "name")
    refused(put(stocked, some(40, 6), encoder="unknown"), 404, "encoder-not-found", "encoder")
    refused(put(stocked, some(40, 6), encoder="a%20b"), 422, "invalid-request", "encoder")


def test_a_set_in_use_is_not_deleted(stocked, refused):
    head = {"name": "h", "anchor_set": "items", "classes": ["a", "b"], "weight": some(2, 40)}
    assert stocked.post("/heads", json=head).status_code == 201
    refused(stocked.delete("/anchor-sets/items"), 409, "in-use", detail="head 'h'")
    assert stocked.get("/anchor-sets/items").json()["encoders"] == ["first", "second"]
    stocked.delete("/heads/h")
    assert stocked.delete("/anchor-sets/items").status_code == 204
