"""/migrations over HTTP with a worker: on a table, and on a file that its application opens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from starlette.testclient import TestClient

from tests.moves.moving import make_table
from tests.pgvector_server import PgvectorServer


@pytest.fixture
def client(serve: Callable[..., TestClient], pgvector_url: str, tmp_path: Path) -> TestClient:
    (tmp_path / "indexes").mkdir()
    return serve(stores={"main": pgvector_url, "files": str(tmp_path / "indexes")})


@pytest.fixture
def rows(embeddings: dict[str, np.ndarray]) -> np.ndarray:
    """400 vectors near those of the encoder `first`."""
    draw = np.random.default_rng(1)
    made = np.repeat(embeddings["first"], 10, axis=0) + 0.1 * draw.normal(size=(400, 8))
    return (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float32)


def plan(client: TestClient, **place: str) -> dict[str, Any]:
    """A planned migration of the store `docs` from `first` to `second`."""
    answer = client.post("/stores", json={"name": "docs", **place, "encoder": "first"})
    assert answer.status_code == 201, answer.text
    wanted = {"store": "docs", "target": "second", "anchor_set": "items", "min_recall": 0.5}
    answer = client.post("/migrations", json={**wanted, "batch": 50})
    assert answer.status_code == 201, answer.text
    assert answer.headers["location"] == f"/migrations/{answer.json()['id']}"
    return answer.json()


@pytest.fixture
def moved(stocked: TestClient, rows: np.ndarray, pgvector_server: PgvectorServer) -> str:
    """The path of a planned migration."""
    table = make_table(pgvector_server, rows)
    planned = plan(stocked, kind="pgvector", address="main", collection=table)
    return f"/migrations/{planned['id']}"


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
    states = {"cutover": "cut-over", "rollback": "rolled-back", "finish": "finished"}
    for step in ("cutover", "rollback", "cutover", "finish"):
        answer = stocked.post(f"{moved}/{step}", json={})
        assert (answer.status_code, answer.json()["state"]) == (200, states[step]), answer.text
    assert answer.json()["next"] == []
    assert answer.json()["ended_at"] is not None
    assert stocked.get("/stores/docs").json()["encoder"] == "second"


def test_steps_that_are_not_possible_say_what_is(stocked: TestClient, moved: str) -> None:
    for step in ("verify", "sync", "pause", "cutover", "rollback", "finish"):
        answer = stocked.post(f"{moved}/{step}")
        assert (answer.status_code, answer.json()["code"]) == (409, "wrong-state"), step
        assert ("is cut over" if step == "rollback" else "`run`") in answer.json()["detail"]
    for call in (stocked.get, stocked.post):
        unknown = call(f"/migrations/{'0' * 32}{'/run' * (call == stocked.post)}")
        assert (unknown.status_code, unknown.json()["code"]) == (404, "migration-not-found")
    body = stocked.post(f"{moved}/run", json={"force": True})
    assert (body.status_code, body.json()["code"]) == (422, "invalid-request")


def test_a_file_is_filled_verified_and_left_to_the_application(
    stocked: TestClient,
    rows: np.ndarray,
    embeddings: dict[str, np.ndarray],
    finished: Callable[..., dict[str, Any]],
    tmp_path: Path,
) -> None:
    path = tmp_path / "indexes" / "docs.faiss"

    def write(vectors: np.ndarray) -> None:
        index = faiss.index_factory(8, "IDMap2,Flat", faiss.METRIC_INNER_PRODUCT)
        index.add_with_ids(vectors, np.arange(len(vectors)))
        faiss.write_index(index, str(path))

    def act(action: str) -> dict[str, Any]:
        job = finished(stocked, stocked.post(f"{moved}/{action}").json()["id"])
        assert job["state"] == "succeeded", job
        return stocked.get(moved).json()

    write(rows[:390])
    planned = plan(stocked, kind="faiss", address="files", collection="docs.faiss")
    assert "stop-writes" in {note["code"] for note in planned["plan"]["notes"]}
    moved = f"/migrations/{planned['id']}"
    assert act("run")["next"] == ["verify", "run", "abandon"]
    for step in ("cutover", "rollback", "sync"):
        answer = stocked.post(f"{moved}/{step}")
        assert (answer.status_code, answer.json()["code"]) == (409, "wrong-state")
        assert "open the new file in your application" in answer.json()["detail"]
    assert stocked.post(f"{moved}/finish").json()["code"] == "not-verified"
    rows[3] = rows[4]
    write(rows)  # although nothing should be written now
    verified = act("verify")["found"]["verify"]
    assert not verified["passed"]
    assert "differ by 10 rows: rows were added or deleted" in verified["rows"]["detail"]
    act("run")
    shown = act("verify")
    assert shown["found"]["verify"]["passed"], shown["found"]
    assert shown["next"] == ["finish", "run", "verify", "abandon"]
    query = {"anchor_set": "items", "queries": embeddings["second"][:1].tolist(), "k": 3}
    found = stocked.post("/stores/docs/search", json={**query, "target": "second"}).json()
    assert found["mode"] == "cascade"
    assert stocked.post(f"{moved}/finish").json()["state"] == "finished"
    assert stocked.get("/stores/docs").json()["encoder"] == "first"
    new = faiss.read_index(f"{path}.anchorage-{planned['id'][:8]}-new")
    assert (new.ntotal, new.d) == (400, embeddings["second"].shape[1])
    assert faiss.read_index(str(path)).d == 8
