"""/bootstrap."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def ask(stocked, embeddings):
    """POST /bootstrap over the 40 items as pools; a change of ... leaves a field out."""

    def post(**more):
        body = {
            "name": "found",
            "source": "first",
            "target": "second",
            "source_pool": embeddings["first"].tolist(),
            "target_pool": embeddings["second"].tolist(),
            "seeds": [[i, i] for i in range(12)],
            "size": 20,
            "method": "paper",
            "min_right": 0,
            "options": {"steps": 20},
            **more,
        }
        return stocked.post("/bootstrap", json={key: value for key, value in body.items() if value is not ...})

    return post


def test_a_bootstrap_is_a_job_that_makes_the_anchor_set(ask, stocked, finished):
    answer = ask()
    assert answer.status_code == 202
    job = answer.json()
    assert answer.headers["location"] == f"/jobs/{job['id']}"
    assert (job["kind"], job["result"], job["error"]) == ("bootstrap", None, None)
    job = finished(stocked, job["id"])
    assert (job["state"], job["attempts"], job["error"]) == ("succeeded", 1, None), job
    assert job["progress"]["done"] == job["progress"]["total"] == 20
    result = job["result"]
    assert (result["anchor_set"], result["asked"]) == ("found", 20)
    assert 12 <= result["size"] <= 20
    assert result["pairs"][:12] == [[i, i] for i in range(12)]
    assert result["nearness"][:12] == [1.0] * 12
    assert len(result["pairs"]) == len(result["nearness"]) == result["size"]
    made = stocked.get("/anchor-sets/found").json()
    assert (made["size"], made["encoders"]) == (result["size"], ["first", "second"])
    assert made["provenance"]["job"] == job["id"]
    assert made["provenance"]["seeds"] == 12
    body = {"source": "first", "target": "second", "anchor_set": "found", "vectors": [[1.0] * 8]}
    assert stocked.post("/translate", json=body).status_code == 200


def test_seeds_alone_are_a_set_too_and_equal_requests_find_equal_anchors(ask, stocked, finished):
    seeds = [[i, 39 - i] for i in range(4)]
    job = finished(stocked, ask(seeds=seeds, size=4).json()["id"])
    assert job["result"]["pairs"] == seeds
    again = [finished(stocked, ask(name=name).json()["id"])["result"] for name in ("x", "y")]
    assert again[0]["pairs"] == again[1]["pairs"]
    assert again[0]["loss"] == again[1]["loss"]


def test_a_name_taken_meanwhile_fails_the_job_with_its_code(ask, stocked, finished, embeddings):
    pools = {
        "source_pool": np.random.default_rng(0).normal(size=(200, 8)).tolist(),
        "target_pool": np.random.default_rng(1).normal(size=(200, 6)).tolist(),
    }
    first = ask(name="slow", options={"steps": 150, "sinkhorn_steps": 5}, size=100, **pools).json()["id"]
    taken = {"name": "slow", "embeddings": {"first": embeddings["first"][:5].tolist()}}
    assert stocked.post("/anchor-sets", json=taken).status_code == 201
    job = finished(stocked, first)
    assert (job["state"], job["error"]["code"], job["result"]) == ("failed", "name-taken", None)
    assert "'slow'" in job["error"]["detail"]
    assert stocked.get("/anchor-sets/slow").json()["size"] == 5


def test_an_encoder_deleted_meanwhile_fails_the_job_with_its_code(ask, stocked, finished):
    stocked.post("/encoders", json={"name": "gone", "dim": 6})
    job_id = ask(target="gone", options={"steps": 400, "sinkhorn_steps": 5}).json()["id"]
    assert stocked.delete("/encoders/gone").status_code == 204
    job = finished(stocked, job_id)
    assert (job["state"], job["error"]["code"]) == ("failed", "encoder-not-found")
    assert stocked.get("/anchor-sets/found").status_code == 404


PAIRS = [[i, i] for i in range(12)]


@pytest.mark.parametrize(
    ("change", "status", "code", "field", "rows"),
    [
        ({"seeds": [*PAIRS, [40, 12]]}, 422, "invalid-seeds", "seeds", [12]),
        ({"seeds": [[12, 40], *PAIRS]}, 422, "invalid-seeds", "seeds", [0]),
        ({"seeds": [*PAIRS, [-1, 12]]}, 422, "invalid-seeds", "seeds", [12]),
        ({"seeds": [*PAIRS, [2**62, 12]]}, 422, "invalid-seeds", "seeds", [12]),
        ({"seeds": [*PAIRS, [3, 13]]}, 422, "invalid-seeds", "seeds", [12]),
        ({"seeds": [*PAIRS, [13, 3]]}, 422, "invalid-seeds", "seeds", [12]),
        ({"seeds": []}, 422, "invalid-seeds", "seeds", None),
        ({"seeds": [[0, 0]]}, 422, "invalid-seeds", "seeds", None),
        ({"seeds": [[i, i] for i in range(21)]}, 422, "invalid-seeds", "seeds", None),
        ({"seeds": [[0, 0], [1]]}, 422, "invalid-request", "seeds.1", None),
        ({"seeds": [[0, 0], [1, 1, 1]]}, 422, "invalid-request", "seeds.1", None),
        ({"seeds": [[0, 0], [1.0, 1]]}, 422, "invalid-request", "seeds.1.0", None),
        ({"seeds": [[0, 0], ["1", 1]]}, 422, "invalid-request", "seeds.1.0", None),
        ({"seeds": [[0, 0], [True, 1]]}, 422, "invalid-request", "seeds.1.0", None),
        ({"seeds": {"0": 0}}, 422, "invalid-request", "seeds", None),
        ({"seeds": None}, 422, "invalid-request", "seeds", None),
        ({"size": 41}, 422, "invalid-seeds", "size", None),
        ({"size": 1}, 422, "invalid-request", "size", None),
        ({"size": 4097}, 422, "invalid-request", "size", None),
        ({"size": 20.0}, 422, "invalid-request", "size", None),
        ({"source_pool": [[1.0] * 8] * 201}, 413, "pool-too-large", "source_pool", None),
        ({"target_pool": [[1.0] * 6] * 201}, 413, "pool-too-large", "target_pool", None),
        ({"source_pool": [[1.0] * 7] * 40}, 422, "dimension-mismatch", "source_pool", None),
        ({"target_pool": [[1.0] * 6] * 40}, 422, "degenerate-anchors", "target_pool", None),
        ({"target_pool": [[1.0] * 6, [1e31] * 6]}, 422, "value-out-of-range", "target_pool", [1]),
        ({"target_pool": []}, 422, "empty-vectors", "target_pool", None),
        ({"source_pool": None}, 422, "not-exactly-one", "source_pool", None),
        ({"source_pool": ...}, 422, "not-exactly-one", "source_pool", None),
        ({"name": "items"}, 409, "name-taken", "name", None),
        ({"name": "a b"}, 422, "invalid-request", "name", None),
        ({"source": "nobody"}, 404, "encoder-not-found", "source", None),
        ({"target": "nobody"}, 404, "encoder-not-found", "target", None),
        ({"options": {"steps": 0}}, 422, "invalid-request", "options.steps", None),
        ({"options": {"steps": 2001}}, 422, "invalid-request", "options.steps", None),
        ({"options": {"learning_rate": 0}}, 422, "invalid-request", "options.learning_rate", None),
        ({"options": {"epsilon": 1e-7}}, 422, "invalid-request", "options.epsilon", None),
        ({"options": {"sinkhorn_steps": 101}}, 422, "invalid-request", "options.sinkhorn_steps", None),
        ({"options": {"seed": -1}}, 422, "invalid-request", "options.seed", None),
        ({"options": {"size": 5}}, 422, "unknown-field", "options.size", None),
        ({"method": "paper"}, 422, "unknown-field", "method", None),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_wrong_request_is_refused_and_no_job_remains(ask, stocked, refused, change, status, code, field, rows):
    refused(ask(**change), status, code, field, rows)
    assert stocked.get("/jobs").json() == {"jobs": []}
    refused(stocked.get("/anchor-sets/found"), 404, "anchor-set-not-found", "name")


def test_an_encoder_has_no_partners_in_itself(ask, stocked, refused, embeddings):
    """A set has one embedding by each encoder: pairs of two different items of one encoder cannot be kept in it."""
    answer = ask(target="first", target_pool=embeddings["first"].tolist())
    refused(answer, 422, "invalid-request", "target")
    assert stocked.get("/jobs").json() == {"jobs": []}


@pytest.mark.parametrize(
    "options", [{"epsilon": 1e-6}, {"epsilon": 10}, {"learning_rate": 1}, {"seed": 2**63 - 1}, {"sinkhorn_steps": 100}]
)
def test_the_ends_of_the_options_end_in_a_set_of_finite_numbers(ask, stocked, finished, options):
    job = finished(stocked, ask(options={"steps": 3, **options}).json()["id"])
    assert job["state"] == "succeeded", job
    assert all(-1.001 <= cosine <= 1.001 for cosine in job["result"]["nearness"])


def test_of_two_waiting_requests_for_one_name_the_first_one_wins(ask, stocked, finished):
    pools = {
        "source_pool": np.random.default_rng(0).normal(size=(200, 8)).tolist(),
        "target_pool": np.random.default_rng(1).normal(size=(200, 6)).tolist(),
    }
    ids = [ask(options={"steps": 100}, size=100, **pools).json()["id"] for _ in range(2)]
    first, second = (finished(stocked, job_id) for job_id in ids)
    assert (first["state"], second["state"], second["error"]["code"]) == ("succeeded", "failed", "name-taken")
    assert stocked.get("/anchor-sets/found").json()["provenance"]["job"] == ids[0]
