"""/pools and /bootstrap."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch

from app.anchors import service as anchor_sets
from app.bootstrap import service as bootstrap
from app.bootstrap.run import load_items
from app.context import RequestContext
from app.db import resources
from app.http import media_types

NPY = media_types.NPY
PAIRS = [[i, i] for i in range(12)]
ROWS = np.random.default_rng(11).normal(size=(30, 8)).astype(np.float32)


def as_npy(rows):
    file = io.BytesIO()
    np.save(file, rows)
    return file.getvalue()


def put(client, rows=ROWS, name="p", encoder="first"):
    return client.put(
        f"/pools/{name}", json={"encoder": encoder, "vectors": np.asarray(rows).tolist()}
    )


def add(client, offset, rows=ROWS, name="p"):
    return client.post(
        f"/pools/{name}/vectors", json={"offset": offset, "vectors": np.asarray(rows).tolist()}
    )


def stored(client, name="p", project="default"):
    """The pool's items as a bootstrap reads them, and the number of pieces."""
    services = client.app.state.services
    with services.db.transaction() as session:
        pieces = resources.whole_pool(session, project, name).pieces
    return load_items(services, [piece["blob"] for piece in pieces]).numpy(), len(pieces)


# --- pieces ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [29, 31])
def test_a_piece_that_begins_elsewhere_is_refused_with_where_the_pool_ends(
    stocked, refused, offset
):
    put(stocked)
    before = stocked.get("/pools/p").json()
    answer = add(stocked, offset, ROWS + 1)
    assert refused(answer, 409, "offset-mismatch", "offset", detail="30")["items"] == 30
    assert stocked.get("/pools/p").json() == before
    assert np.array_equal(stored(stocked)[0], ROWS)


# --- what is wrong with a piece -------------------------------------------------------------------


def test_a_bad_piece_is_refused_and_leaves_nothing(stocked, refused):
    body, *problem = {"vectors": []}, 422, "empty-vectors", "vectors"
    refused(stocked.put("/pools/p", json={"encoder": "first", **body}), *problem)
    refused(stocked.get("/pools/p"), 404, "pool-not-found", "name")
    before = put(stocked).json()
    refused(stocked.post("/pools/p/vectors", json={"offset": 30, **body}), *problem)
    assert stocked.get("/pools/p").json() == before


def test_a_pool_grows_up_to_its_limits_and_no_further(stocked, refused, monkeypatch):
    put(stocked, np.tile(ROWS, (6, 1)))
    assert refused(add(stocked, 180, ROWS[:21]), 413, "pool-too-large", "vectors")["limit"] == 200
    assert add(stocked, 180, ROWS[:20]).json()["items"] == 200
    assert refused(add(stocked, 200, ROWS[:1]), 413, "pool-too-large", "vectors")["limit"] == 200
    monkeypatch.setattr(bootstrap, "MAX_POOL_PIECES", 3)
    put(stocked, ROWS[:1], name="q")
    for offset in (1, 2):
        assert add(stocked, offset, ROWS[:1], name="q").status_code == 201
    assert (
        refused(add(stocked, 3, ROWS[:1], name="q"), 413, "pool-too-large", "vectors")["limit"] == 3
    )


def test_a_piece_is_bound_by_what_one_request_may_hold_and_a_pool_is_not(serve, refused):
    service = serve(max_vectors=20, max_pool=60, max_body_bytes=2_000)
    service.post("/encoders", json={"name": "first", "dim": 8})
    refused(put(service, ROWS), 413, "body-too-large")

    def send(method, path, rows):
        return service.request(method, path, content=as_npy(rows), headers={"content-type": NPY})

    whole = "/pools/p?encoder=first"
    refused(send("PUT", whole, ROWS[:21]), 413, "too-many-vectors", "vectors")
    assert send("PUT", whole, ROWS[:20]).status_code == 201
    for offset in (20, 40):
        path = f"/pools/p/vectors?offset={offset}"
        assert send("POST", path, ROWS[:20]).status_code == 201
    assert service.get("/pools/p").json()["items"] == 60


# --- whose it is, and what was done ---------------------------------------------------------------


def test_an_encoder_that_a_pool_uses_stays(stocked, refused):
    stocked.post("/encoders", json={"name": "third", "dim": 8})
    put(stocked, encoder="third")
    refused(stocked.delete("/encoders/third"), 409, "in-use", detail="pool 'p'")
    stocked.delete("/pools/p")
    assert stocked.delete("/encoders/third").status_code == 204


# --- bootstraps -----------------------------------------------------------------------------------


@pytest.fixture
def ask(stocked, embeddings):
    """POST /bootstrap of the pools `source` and `target`; a value of ... leaves a field out."""
    draw = np.random.default_rng(12)
    put(stocked, draw.normal(size=(25, 8)), name="source")
    add(stocked, 25, draw.normal(size=(95, 8)), name="source")
    put(stocked, draw.normal(size=(120, 6)), name="target", encoder="second")

    def post(**more):
        body = {
            "name": "found",
            "source": "first",
            "target": "second",
            "source_pool": "source",
            "target_pool": "target",
            "seeds": PAIRS,
            "size": 20,
            "min_precision": 0,
            **more,
        }
        return stocked.post(
            "/bootstrap", json={key: value for key, value in body.items() if value is not ...}
        )

    return post


@pytest.mark.parametrize(
    ("change", "status", "code", "field", "rows"),
    [
        ({"source_pool": "nothing"}, 404, "pool-not-found", "source_pool", None),
        ({"source_pool": "target"}, 409, "pool-of-another-encoder", "source_pool", None),
        ({"source_pool": ...}, 422, "not-exactly-one", "source_pool", None),
        ({"source_pool": "flat"}, 422, "degenerate-anchors", "source_pool", None),
        ({"target_pool": [[1.0] * 6] * 120}, 422, "degenerate-anchors", "target_pool", None),
        ({"seeds": [*PAIRS, [120, 12]]}, 422, "invalid-seeds", "seeds", [12]),
        ({"name": "items"}, 409, "name-taken", "name", None),
        # a set has one space for each encoder
        ({"target": "first", "target_pool": "source"}, 422, "invalid-request", "target", None),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_wrong_request_is_refused_by_its_field_and_no_job_remains(
    ask, stocked, refused, change, status, code, field, rows
):
    put(stocked, [[1.0] * 8] * 30, name="flat")
    add(stocked, 30, [[1.0] * 8] * 90, name="flat")
    refused(ask(**change), status, code, field, rows)
    assert stocked.get("/jobs").json() == {"jobs": []}


def test_a_bootstrap_encodes_inputs_as_a_pool_does(encoding, fresh, finished):
    def grow(**sides):
        how = {
            "min_precision": 0,
            "seeds": [[i, i] for i in range(10)],
            "size": 20,
        }
        body = {"name": fresh(), "source": "minilm", "target": "own", **how, **sides}
        answer = encoding.http.post("/bootstrap", json=body)
        assert answer.status_code == 202, answer.text
        job = finished(encoding.http, answer.json()["id"])
        assert job["state"] == "succeeded", job
        return encoding.http.get(f"/anchor-sets/{body['name']}/pairs").json()

    texts = [f"{text} {number}" for number in range(100) for text in encoding.texts[:1]]
    name, own = fresh(), np.random.default_rng(3).normal(size=(len(texts), 5)).tolist()
    assert (
        encoding.http.put(f"/pools/{name}", json={"encoder": "minilm", "inputs": texts}).status_code
        == 201
    )
    named = grow(source_pool=name, target_pool=own)
    assert named["pairs"][:10] == [[i, i] for i in range(10)]
    assert grow(source_inputs=texts, target_pool=own) == named


# --- the pairs of a grown set ---------------------------------------------------------------------


@pytest.fixture
def grown(stocked, embeddings):
    """A service with the bootstrapped set `grown` of 40 anchors."""
    services = stocked.app.state.services
    pairs = torch.stack([torch.arange(40) * 3, torch.arange(40).flip(0)], dim=1)
    confidence = torch.linspace(0, 1, 40)
    confidence[5] = torch.nan
    vectors = {name: torch.tensor(rows) for name, rows in embeddings.items()}
    row = anchor_sets.build_anchor_set(
        services,
        "default",
        name="grown",
        embeddings=vectors,
        pairs={"pairs": pairs, "confidence": confidence},
    )
    with services.db.transaction() as session:
        anchor_sets.add_anchor_set(session, RequestContext("default"), row)
    return stocked, pairs.tolist(), [None if sure != sure else sure for sure in confidence.tolist()]


def test_a_page_of_pairs(grown):
    client, pairs, confidence = grown
    answer = client.get("/anchor-sets/grown/pairs", params={"after": 3, "limit": 5}).json()
    assert (answer["pairs"], answer["confidence"]) == (pairs[4:9], pytest.approx(confidence[4:9]))
    assert client.get("/anchor-sets/grown/pairs", params={"after": 39}).json()["pairs"] == []


def test_pairs_that_nobody_can_be_told_are_refused(grown, refused):
    client, _, _ = grown
    refused(
        client.get("/anchor-sets/items/pairs"), 404, "pairs-not-found", "name", detail="'items'"
    )
    refused(client.get("/anchor-sets/nothing/pairs"), 404, "anchor-set-not-found", "name")
