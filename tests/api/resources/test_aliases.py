"""/aliases: plain names for models."""

from __future__ import annotations

import pytest

WEIGHT = [[1.0] * 6, [0.5] * 6]


@pytest.fixture
def stocked(client, parallel):
    """Encoders `first` and `second`, their set `items`, and the head `clf` of `second`."""
    for name, rows in parallel.items():
        assert client.post("/encoders", json={"name": name, "dim": rows.shape[1]}).is_success
    embeddings = {name: rows.tolist() for name, rows in parallel.items()}
    assert client.post("/anchor-sets", json={"name": "items", "embeddings": embeddings}).is_success
    head = {"name": "clf", "encoder": "second", "classes": ["a", "b"], "weight": WEIGHT}
    assert client.post("/heads", json=head).is_success
    return client


def test_an_alias_is_created_shown_repointed_and_deleted(stocked, refused):
    made = stocked.put("/aliases/judge", json={"model": "first->clf@items"})
    assert made.status_code == 200, made.text
    assert (made.json()["name"], made.json()["model"]) == ("judge", "first->clf@items")
    assert stocked.get("/aliases/judge").json() == made.json()
    moved = stocked.put("/aliases/judge", json={"model": "clf"}).json()
    assert moved == {**made.json(), "model": "clf"}
    assert stocked.get("/aliases").json() == {"aliases": [moved]}
    assert stocked.delete("/aliases/judge").status_code == 204
    for verb in (stocked.get, stocked.delete):
        refused(verb("/aliases/judge"), 404, "alias-not-found", "name")


def test_aliases_are_listed_in_pages_by_name(stocked):
    for name in "cab":
        stocked.put(f"/aliases/{name}", json={"model": "clf"})

    def names(query):
        return [each["name"] for each in stocked.get("/aliases" + query).json()["aliases"]]

    assert names("") == ["a", "b", "c"]
    assert names("?limit=2") == ["a", "b"]
    assert names("?limit=2&after=b") == ["c"]


@pytest.mark.parametrize(
    ("name", "body", "status", "code", "field"),
    [
        ("first", {"model": "clf"}, 409, "name-taken", "name"),
        ("x", {"model": "nothing"}, 404, "encoder-not-found", "model"),
        ("x", {"model": "first->second@items"}, 422, "encoder-needs-vectors", "model"),
        ("x", {"model": "first->clf@nothing"}, 404, "anchor-set-not-found", "model"),
        ("x", {"model": "m" * 401}, 422, "invalid-request", "model"),
        ("x@y", {"model": "clf"}, 422, "invalid-request", "name"),
    ],
)
def test_a_wrong_alias_is_refused_and_its_field_named(
    stocked, refused, name, body, status, code, field
):
    refused(stocked.put(f"/aliases/{name}", json=body), status, code, field)
    assert stocked.get("/aliases").json() == {"aliases": []}


def test_what_an_alias_names_is_in_use_and_its_name_is_taken(stocked, refused):
    stocked.put("/aliases/judge", json={"model": "first->clf@items"})
    for path in ("/heads/clf", "/anchor-sets/items", "/encoders/first"):
        refused(stocked.delete(path), 409, "in-use", detail="alias 'judge'")
    named = stocked.post("/encoders", json={"name": "judge", "dim": 2})
    refused(named, 409, "name-taken", "name", detail="An alias named 'judge' exists")
    head = {"name": "judge", "encoder": "second", "classes": ["a", "b"], "weight": WEIGHT}
    refused(stocked.post("/heads", json=head), 409, "name-taken", "name", detail="An alias")
