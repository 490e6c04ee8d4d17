"""/bootstrap."""

from __future__ import annotations

import json

import numpy as np
import pytest

from app.demo.pack import load_pack
from tests.waiting import until


@pytest.fixture
def ask(stocked):
    """POST /bootstrap over pools of 120 items; a value of ... leaves a field out."""

    def post(**more):
        body = {
            "name": "found",
            "source": "first",
            "target": "second",
            **MANY,
            "seeds": PAIRS,
            "size": 20,
            "min_precision": 0,
            **more,
        }
        return stocked.post(
            "/bootstrap", json={key: value for key, value in body.items() if value is not ...}
        )

    return post


PAIRS = [[i, i] for i in range(12)]
MANY = {
    side: [[1.0 * i] * dim for i in range(120)]
    for side, dim in (("source_pool", 8), ("target_pool", 6))
}


@pytest.mark.parametrize(
    ("change", "status", "code", "field", "rows"),
    [
        ({"seeds": [*PAIRS, [120, 12]]}, 422, "invalid-seeds", "seeds", [12]),
        ({"target_pool": [[1.0] * 6] * 201}, 413, "pool-too-large", "target_pool", None),
        ({"target_pool": [[1.0] * 6] * 120}, 422, "degenerate-anchors", "target_pool", None),
        ({"name": "items"}, 409, "name-taken", "name", None),
        ({"source": "unknown"}, 404, "encoder-not-found", "source", None),
        # a set has one space for each encoder
        (
            {"target": "first", "target_pool": MANY["source_pool"]},
            422,
            "invalid-request",
            "target",
            None,
        ),
        ({"method": "alignment"}, 422, "invalid-request", "source_pool", None),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_wrong_request_is_refused_and_no_job_remains(
    ask, stocked, refused, change, status, code, field, rows
):
    refused(ask(**change), status, code, field, rows)
    assert stocked.get("/jobs").json() == {"jobs": []}
    refused(stocked.get("/anchor-sets/found"), 404, "anchor-set-not-found", "name")


# --- large pools ----------------------------------------------------------------------------------


@pytest.fixture
def learn(serve, packed):
    """POST /bootstrap of two pools with ten seeds; returns the client and the id of the job."""
    client = serve(max_vectors=10_000, max_pool=10_000)

    def post(x, y, partners, **more):
        for name, pool in (("old", x), ("new", y)):
            client.post("/encoders", json={"name": name, "dim": pool.shape[1]})
        body = {
            "name": "learnt",
            "source": "old",
            "target": "new",
            "source_pool": packed(x),
            "target_pool": packed(y),
            "seeds": [[row, int(partners[row])] for row in range(10)],
            **more,
        }
        answer = client.post("/bootstrap", json=body)
        assert answer.status_code == 202, answer.text
        return client, answer.json()["id"]

    return post


def test_progress_tells_how_well_it_fits_how_many_pairs_there_are_and_whether_attempts_agree(learn):
    vectors = load_pack().vectors
    x, y = (vectors[name][:600].numpy() for name in ("minilm6-384", "static-256"))
    order = np.random.default_rng(5).permutation(600)
    client, job_id = learn(x, y[order], order.argsort())
    seen = list(events(client, job_id))
    assert [event for event, _ in seen] == ["progress"] * (len(seen) - 1) + ["end"]
    reports = [row["progress"] for _, row in seen]
    done = [report["done"] for report in reports if "done" in report]
    assert done == sorted(done)
    under_way = [report for report in reports[:-1] if "fit" in report]
    assert under_way
    assert all(
        0 < report["done"] <= report["total"] and -1 <= report["fit"] <= 1 for report in under_way
    )
    last = reports[-1]
    assert last["done"] == last["total"]
    assert last["agreement"] > 0.9
    assert 400 < last["pairs"] <= 600
    assert last["confirmed"] > 0.5


def test_a_running_bootstrap_of_large_pools_is_cancelled_before_it_ends(learn, finished):
    draw = np.random.default_rng(3)
    x, y = (draw.normal(size=(6_000, 64)).astype(np.float32) for _ in range(2))
    client, job_id = learn(x, y, np.arange(6_000))
    until(lambda: client.get(f"/jobs/{job_id}").json()["progress"].get("done", 0) >= 1)
    assert client.post(f"/jobs/{job_id}/cancel").status_code == 202
    job = finished(client, job_id)
    assert (job["state"], job["error"], job["result"]) == ("cancelled", None, None)


def events(client, job_id):
    """The events of a job's stream."""
    event = ""
    for line in client.get(f"/jobs/{job_id}/events").text.splitlines():
        name, _, value = line.partition(": ")
        if name == "event":
            event = value
        elif name == "data":
            yield event, json.loads(value)
