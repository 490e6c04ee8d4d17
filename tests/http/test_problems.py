"""Errors of the framework, and the shape of every problem document."""

from __future__ import annotations

import pytest

POOLS = {"source_pool": [[1]], "target_pool": [[1]]}


def test_an_unknown_route_and_a_wrong_verb_are_problem_documents(client, refused):
    for path in ("/nothing", "/encoders/a/b", "/v1x", "/%ff"):
        refused(client.get(path), 404, "not-found")
    for verb, path in (("DELETE", "/encoders"), ("GET", "/translate")):
        answer = client.request(verb, path)
        refused(answer, 405, "method-not-allowed")
        assert answer.headers["allow"] in ("GET", "POST", "GET, POST")


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/encoders?limit=abc", "limit"),
        ("/encoders?limit=1001", "limit"),
        ("/heads?after=" + "a" * 101, "after"),
        ("/jobs?state=lost", "state"),
        ("/encoders/-x", "name"),
        ("/encoders/x%0A", "name"),
    ],
)
def test_a_malformed_parameter_is_refused_by_name(client, refused, path, field):
    refused(client.get(path), 422, "invalid-request", field, detail=field)


def test_several_wrong_fields_are_all_named_and_no_type_is_guessed(client, refused):
    body = {"name": "a b", "dim": "2", "kind": "x"}
    problem = refused(client.post("/encoders", json=body), 422, "invalid-request", "name")
    assert {error["field"] for error in problem["errors"]} == {"name", "dim", "kind"}
    assert all(error["message"] for error in problem["errors"])
    refused(client.post("/encoders", json={"dim": 2}), 422, "missing-field", "name")
    body, hint = {"name": "x", "dim": 2, "endpoint": "http://x"}, "Did you mean `options.url`?"
    refused(client.post("/encoders", json=body), 422, "unknown-field", "endpoint", detail=hint)
    refused(client.get("/jobs/docs"), 422, "invalid-request", "id", detail="an id, not a name")
    refused(client.post("/encoders", json=[]), 422, "invalid-request", "body")
    assert client.get("/encoders").json() == {"encoders": []}


def test_below_v1_errors_have_the_shape_of_openai(client, locked, serve, complaint):
    for path in ("/v1/nothing", "/v1/models/a/b"):
        assert complaint(client.get(path))[0] == 404, path
    path, json = "/v1/embeddings", {"content-type": "application/json"}
    assert complaint(client.get(path))[0] == 405
    assert complaint(client.post(path, json={"surplus": 1}))[0] == 400
    assert complaint(client.post(path, content=b"{", headers=json)) == (400, "malformed-json")
    big = client.post(path, content=b" " * (5 * 1024 * 1024), headers=json)
    assert complaint(big) == (413, "body-too-large")
    host = client.post(path, json={}, headers={"host": "evil.example"})
    assert complaint(host) == (403, "host-not-allowed")
    assert complaint(locked.post(path, json={})) == (401, "unauthenticated")
    faulty = serve()
    faulty.app.state.services = None  # an unexpected error of a route
    body = {"model": "x", "input": "x"}
    assert complaint(faulty.post(path, json=body)) == (500, "internal")


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/relative", {"encoder": "a", "anchor_set": "s", "inputs": [1] * 100_000}, "inputs.0"),
        ("/encoders", {f"field{number}": 1 for number in range(100_000)}, "body"),
        (
            "/bootstrap",
            {"name": "x", "source": "a", "target": "b", **POOLS, "seeds": [["a"]] * 100_000},
            "seeds.0",
        ),
    ],
)
def test_a_body_wrong_in_a_hundred_thousand_places_names_the_first(client, path, body, field):
    """An error for each of them took minutes and gigabytes: no more than a few are made."""
    problem = client.post(path, json=body).json()
    assert problem["status"] == 422
    assert problem["field"].startswith(field)
    assert len(problem["errors"]) <= 3
