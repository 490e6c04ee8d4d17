"""/migrations: plans, jobs and steps over HTTP, on a real table with a worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from tests.moves.moving import make_table
from tests.pgvector_server import PgvectorServer


@pytest.fixture
def client(serve: Callable[..., TestClient], pgvector_url: str) -> TestClient:
    return serve(stores={"main": pgvector_url})


@pytest.fixture
def moved(
    stocked: TestClient, embeddings: dict[str, np.ndarray], pgvector_server: PgvectorServer
) -> str:
    """The path of a planned migration of 400 rows from `first` to `second`."""
    draw = np.random.default_rng(1)
    rows = np.repeat(embeddings["first"], 10, axis=0) + 0.1 * draw.normal(size=(400, 8))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    table = make_table(pgvector_server, rows.astype(np.float32))
    place = {"kind": "pgvector", "address": "main", "collection": table}
    answer = stocked.post("/stores", json={"name": "docs", **place, "encoder": "first"})
    assert answer.status_code == 201, answer.text
    plan = {"store": "docs", "target": "second", "anchor_set": "items", "batch": 50}
    answer = stocked.post("/migrations", json={**plan, "min_recall": 0.5})
    assert answer.status_code == 201, answer.text
    return f"/migrations/{answer.json()['id']}"


def test_a_store_moves_over_http(
    stocked: TestClient, moved: str, finished: Callable[..., dict[str, Any]]
) -> None:
    shown = stocked.get(moved).json()
    assert stocked.get("/migrations").json() == {"migrations": [shown], "next_before": None}
    assert (shown["state"], shown["next"], shown["job"]) == ("planned", ["run", "abandon"], None)
    assert shown["progress"]["rows"] == 0
    for action in ("run", "verify", "sync"):
        answer = stocked.post(f"{moved}/{action}")
        assert answer.status_code == 202
        job = finished(stocked, answer.json()["id"])
        assert answer.headers["location"] == f"/jobs/{job['id']}"
        assert (job["kind"], job["state"]) == ("migrate", "succeeded"), job
        shown = stocked.get(moved).json()
        assert shown["job"] == {"id": job["id"], "action": action, "state": "succeeded"}
        assert (shown["state"], shown["error"]) == ("filled", None)
    assert shown["progress"]["rows"] == shown["progress"]["total"] == 400
    assert shown["found"]["verify"]["passed"]
    for step, state in (
        ("cutover", "cut-over"),
        ("rollback", "rolled-back"),
        ("cutover", "cut-over"),
        ("finish", "finished"),
    ):
        answer = stocked.post(f"{moved}/{step}", json={})
        assert (answer.status_code, answer.json()["state"]) == (200, state), answer.text
    assert answer.json()["next"] == []
    assert answer.json()["ended_at"] is not None
    assert stocked.get("/stores/docs").json()["encoder"] == "second"
    noted = stocked.get("/audit").json()["writes"]
    actions = [each["action"] for each in noted if each["resource"] == "migration"]
    assert actions[::-1][1:] == [
        "run",
        "verify",
        "sync",
        "cutover",
        "rollback",
        "cutover",
        "finish",
    ]


def test_steps_that_are_not_possible_say_what_is(stocked: TestClient, moved: str) -> None:
    for step in ("verify", "sync", "pause", "cutover", "rollback", "finish"):
        answer = stocked.post(f"{moved}/{step}")
        assert (answer.status_code, answer.json()["code"]) == (409, "wrong-state"), step
        assert "`run`" in answer.json()["detail"]
    for call in (stocked.get, stocked.post):
        unknown = call(f"/migrations/{'0' * 32}{'/run' * (call == stocked.post)}")
        assert (unknown.status_code, unknown.json()["code"]) == (404, "migration-not-found")
    body = stocked.post(f"{moved}/run", json={"force": True})
    assert (body.status_code, body.json()["code"]) == (422, "invalid-request")
