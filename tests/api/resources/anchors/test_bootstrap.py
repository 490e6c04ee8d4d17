"""/bootstrap."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from app.demo.pack import load_pack
from app.main import create_app
from app.settings import Settings


@pytest.fixture
def ask(stocked, embeddings):
    """POST /bootstrap over the 40 items as pools; a value of ... leaves a field out."""

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
        return stocked.post(
            "/bootstrap", json={key: value for key, value in body.items() if value is not ...}
        )

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
    assert (result["anchor_set"], result["method"], result["asked"]) == ("found", "paper", 20)
    assert 12 <= result["size"] <= 20
    assert result["pairs"][:12] == [[i, i] for i in range(12)]
    assert len(result["pairs"]) == len(result["confidence"]) == result["size"]
    assert all(0 <= sure <= 1 for sure in result["confidence"])
    assert result["facts"]["loss"] > 0
    assert 0 <= result["estimate"]["right"] <= 1
    assert (
        result["estimate"]["agreement"] is None
    )  # agreement needs two attempts, and this method makes one
    made = stocked.get("/anchor-sets/found").json()
    assert (made["size"], made["encoders"]) == (result["size"], ["first", "second"])
    told = made["provenance"]
    assert (told["job"], told["method"], told["seeds"], told["pools"]) == (
        job["id"],
        "paper",
        12,
        {"source": 40, "target": 40},
    )
    assert (told["settings"]["steps"], told["estimate"]) == (20, result["estimate"])
    body = {"source": "first", "target": "second", "anchor_set": "found", "vectors": [[1.0] * 8]}
    assert stocked.post("/translate", json=body).status_code == 200


PAIRS = [[i, i] for i in range(12)]
LEARN = {"method": "self-learning", "options": {}, "min_right": 0.5}
#: Pools large enough for self-learning.
MANY: dict[str, list[list[float]]] = {
    side: [[1.0 * i] * dim for i in range(120)]
    for side, dim in (("source_pool", 8), ("target_pool", 6))
}


@pytest.mark.parametrize(
    ("change", "status", "code", "field", "rows"),
    [
        ({"seeds": [*PAIRS, [40, 12]]}, 422, "invalid-seeds", "seeds", [12]),
        ({"seeds": [[0, 0], [1]]}, 422, "invalid-request", "seeds.1", None),
        ({"seeds": [[0, 0], [True, 1]]}, 422, "invalid-request", "seeds.1.0", None),
        ({"size": 1}, 422, "invalid-request", "size", None),
        ({"target_pool": [[1.0] * 6] * 201}, 413, "pool-too-large", "target_pool", None),
        ({"target_pool": [[1.0] * 6] * 40}, 422, "degenerate-anchors", "target_pool", None),
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
        ({"options": {"steps": 0}}, 422, "invalid-request", "options.steps", None),
        ({"method": "annealing"}, 422, "invalid-request", "method", None),
        ({"min_right": -0.1}, 422, "invalid-request", "min_right", None),
        ({**LEARN, "options": {"steps": 20}}, 422, "unknown-option", "options.steps", None),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_wrong_request_is_refused_and_no_job_remains(
    ask, stocked, refused, change, status, code, field, rows
):
    refused(ask(**change), status, code, field, rows)
    assert stocked.get("/jobs").json() == {"jobs": []}
    refused(stocked.get("/anchor-sets/found"), 404, "anchor-set-not-found", "name")


# --- self-learning --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Mixed:
    """Two pools of the same items in different orders: row i of x is row partner[i] of y."""

    x: np.ndarray
    y: np.ndarray
    partner: np.ndarray

    def seeds(self, count: int) -> list[list[int]]:
        """The first rows of x, each with its partner."""
        return [[i, int(self.partner[i])] for i in range(count)]

    def right(self, pairs: list[list[int]]) -> float:
        """The share of right pairs."""
        return float(np.mean([self.partner[i] == j for i, j in pairs]))


def shuffled(x: np.ndarray, y: np.ndarray) -> Mixed:
    order = np.random.default_rng(5).permutation(len(y))
    return Mixed(x, y[order], order.argsort())


@pytest.fixture(scope="module")
def sentences() -> dict[str, np.ndarray]:
    """2,310 sentences by two real encoders, of 384 and 256 dimensions, in random order."""
    vectors = load_pack().vectors
    order = np.random.default_rng(1).permutation(len(vectors["static-256"]))
    return {
        name: vectors[of].numpy()[order]
        for name, of in (("minilm", "minilm6-384"), ("static", "static-256"))
    }


@pytest.fixture(scope="module")
def learning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A service for large pools, with the encoders `minilm` and `static`, and two made-up ones."""
    app = create_app(Settings(data_dir=tmp_path_factory.mktemp("learning")))
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        for name, dim in (("minilm", 384), ("static", 256), ("left", 64), ("right", 64)):
            assert client.post("/encoders", json={"name": name, "dim": dim}).status_code == 201
        yield client


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    return count()


@pytest.fixture
def learn(
    learning: TestClient, numbers: Iterator[int], packed: Callable[..., dict[str, Any]]
) -> Callable[..., dict[str, Any]]:
    """POST /bootstrap with the method's defaults and a new name; returns the job and the name."""

    def post(
        pools: Mixed,
        seeds: list[list[int]],
        *,
        source: str = "minilm",
        target: str = "static",
        **more: Any,
    ):
        body = {
            "name": f"learnt-{next(numbers)}",
            "source": source,
            "target": target,
            "seeds": seeds,
            **more,
        }
        answer = learning.post(
            "/bootstrap",
            json={**body, "source_pool": packed(pools.x), "target_pool": packed(pools.y)},
        )
        assert answer.status_code == 202, answer.text
        return {**answer.json(), "name": body["name"]}

    return post


def test_progress_tells_how_well_it_fits_how_many_pairs_there_are_and_whether_attempts_agree(
    learning, learn, sentences
):
    pools = shuffled(sentences["minilm"][:600], sentences["static"][:600])
    seen = list(events(learning, learn(pools, pools.seeds(15))["id"]))
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


@pytest.mark.parametrize("method", ["self-learning", "paper"])
def test_a_running_bootstrap_of_large_pools_is_cancelled_soon(
    learning, learn, finished, method, capsys
):
    draw = np.random.default_rng(3)
    pools = Mixed(
        *(draw.normal(size=(6_000, 64)).astype(np.float32) for _ in range(2)), np.arange(6_000)
    )
    job_id = learn(pools, pools.seeds(10), source="left", target="right", method=method)["id"]
    deadline = time.monotonic() + 60
    while learning.get(f"/jobs/{job_id}").json()["progress"].get("done", 0) < 1:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    begun = time.monotonic()
    assert learning.post(f"/jobs/{job_id}/cancel").status_code == 202
    job = finished(learning, job_id)
    took_s = time.monotonic() - begun
    with capsys.disabled():
        print(f" [{method}: cancelled after {took_s:.2f} s]", end="")
    assert (job["state"], job["error"], job["result"]) == ("cancelled", None, None)
    assert took_s < 5


def events(client: TestClient, job_id: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events of a job's stream."""
    event = ""
    for line in client.get(f"/jobs/{job_id}/events").text.splitlines():
        name, _, value = line.partition(": ")
        if name == "event":
            event = value
        elif name == "data":
            yield event, json.loads(value)
