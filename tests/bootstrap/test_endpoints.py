"""/pools and /bootstrap."""

from __future__ import annotations

import io

import numpy as np
import pytest

from app.bootstrap import service as bootstrap
from app.http import media_types

PAIRS = [[i, i] for i in range(12)]
ROWS = np.random.default_rng(11).normal(size=(30, 8)).astype(np.float32)


def put(client, rows=ROWS, name="p", encoder="first"):
    return client.put(
        f"/pools/{name}", json={"encoder": encoder, "vectors": np.asarray(rows).tolist()}
    )


def add(client, offset, rows=ROWS, name="p"):
    return client.post(
        f"/pools/{name}/vectors", json={"offset": offset, "vectors": np.asarray(rows).tolist()}
    )


def test_a_piece_that_begins_elsewhere_is_refused_with_where_the_pool_ends(stocked, refused):
    before = put(stocked).json()
    answer = add(stocked, 29, ROWS + 1)
    assert refused(answer, 409, "offset-mismatch", "offset", detail="30")["items"] == 30
    assert stocked.get("/pools/p").json() == before


def test_a_bad_piece_is_refused_and_leaves_nothing(stocked, refused):
    body, *problem = {"vectors": []}, 422, "empty-vectors", "vectors"
    refused(stocked.put("/pools/p", json={"encoder": "first", **body}), *problem)
    refused(stocked.get("/pools/p"), 404, "pool-not-found", "name")
    before = put(stocked).json()
    refused(stocked.post("/pools/p/vectors", json={"offset": 30, **body}), *problem)
    assert stocked.get("/pools/p").json() == before


def test_a_piece_is_bound_by_what_one_request_may_hold_and_a_pool_by_its_own_limits(
    serve, refused, monkeypatch
):
    monkeypatch.setattr(bootstrap, "MAX_POOL_PIECES", 4)
    service = serve(max_vectors=20, max_pool=60)
    service.post("/encoders", json={"name": "first", "dim": 8})
    refused(put(service, ROWS[:21]), 413, "too-many-vectors", "vectors")
    file, npy = io.BytesIO(), {"content-type": media_types.NPY}
    np.save(file, ROWS[:20])
    for method, path in (("PUT", "?encoder=first"), ("POST", "/vectors?offset=20")):
        answer = service.request(method, f"/pools/p{path}", content=file.getvalue(), headers=npy)
        assert answer.status_code == 201
    full = add(service, 40, ROWS[:21])
    assert refused(full, 413, "pool-too-large", "vectors")["limit"] == 60
    assert add(service, 40, ROWS[:1]).json()["items"] == 41
    assert add(service, 41, ROWS[:19]).json()["items"] == 60
    put(service, ROWS[:1], name="q")
    pieces = [add(service, offset, ROWS[:1], name="q") for offset in range(1, 5)]
    assert [each.status_code for each in pieces[:3]] == [201] * 3
    assert refused(pieces[3], 413, "pool-too-large", "vectors")["limit"] == 4


def test_an_encoder_that_a_pool_uses_stays(stocked, refused):
    stocked.post("/encoders", json={"name": "third", "dim": 8})
    put(stocked, encoder="third")
    refused(stocked.delete("/encoders/third"), 409, "in-use", detail="pool 'p'")
    stocked.delete("/pools/p")
    assert stocked.delete("/encoders/third").status_code == 204


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
        ({"source_pool": ...}, 422, "missing-field", "source_pool", None),
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


def test_a_bootstrap_reads_a_pool_of_inputs(encoding, fresh, finished):
    texts = [f"{text} {number}" for number in range(100) for text in encoding.texts[:1]]
    name, own = fresh(), np.random.default_rng(3).normal(size=(len(texts), 5)).tolist()
    pool = {"encoder": "minilm", "inputs": texts}
    assert encoding.http.put(f"/pools/{name}", json=pool).status_code == 201
    body = {"name": fresh(), "source": "minilm", "target": "own", "seeds": PAIRS, "size": 20}
    body |= {"source_pool": name, "target_pool": own, "min_precision": 0}
    job = finished(encoding.http, encoding.http.post("/bootstrap", json=body).json()["id"])
    assert job["result"]["pairs"][: len(PAIRS)] == PAIRS
