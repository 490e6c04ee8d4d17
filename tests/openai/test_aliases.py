"""/aliases: plain names for models."""

from __future__ import annotations

import pytest


@pytest.fixture
def stocked(client, parallel):
    """Encoders `first` and `second`, and their set `items`."""
    for name, rows in parallel.items():
        assert client.post("/encoders", json={"name": name, "dim": rows.shape[1]}).is_success
    embeddings = {name: rows.tolist() for name, rows in parallel.items()}
    assert client.post("/anchor-sets", json={"name": "items", "embeddings": embeddings}).is_success
    return client


@pytest.mark.parametrize(
    ("name", "body", "status", "code", "field"),
    [
        ("first", {"model": "second"}, 422, "encoder-needs-vectors", "model"),
        ("x", {"model": "nothing"}, 404, "encoder-not-found", "model"),
        ("x", {"model": "first->second@items"}, 422, "encoder-needs-vectors", "model"),
        ("x", {"model": "m" * 401}, 422, "invalid-request", "model"),
        ("x@y", {"model": "first"}, 422, "invalid-request", "name"),
    ],
)
def test_a_wrong_alias_is_refused_and_its_field_named(
    stocked, refused, name, body, status, code, field
):
    refused(stocked.put(f"/aliases/{name}", json=body), status, code, field)
    assert stocked.get("/aliases").json() == {"aliases": []}


def test_an_unknown_alias_is_refused(stocked, refused):
    for verb in (stocked.get, stocked.delete):
        refused(verb("/aliases/x"), 404, "alias-not-found", "name")
