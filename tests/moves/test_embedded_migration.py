"""Migrations of stores whose application opens the new vectors itself, over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from starlette.testclient import TestClient


@pytest.fixture
def client(serve: Callable[..., TestClient], tmp_path: Path) -> TestClient:
    (tmp_path / "indexes").mkdir()
    return serve(stores={"main": str(tmp_path / "indexes")})


def test_a_file_is_filled_verified_and_left_to_the_application(
    stocked: TestClient,
    embeddings: dict[str, np.ndarray],
    finished: Callable[..., dict[str, Any]],
    tmp_path: Path,
) -> None:
    draw = np.random.default_rng(1)
    rows = np.repeat(embeddings["first"], 10, axis=0) + 0.1 * draw.normal(size=(400, 8))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
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
    place = {"kind": "faiss", "address": "main", "collection": "docs.faiss"}
    answer = stocked.post("/stores", json={"name": "docs", **place, "encoder": "first"})
    assert answer.status_code == 201, answer.text
    plan = {"store": "docs", "target": "second", "anchor_set": "items", "min_recall": 0.5}
    planned = stocked.post("/migrations", json=plan).json()
    assert "stop-writes" in {note["code"] for note in planned["plan"]["notes"]}
    moved = f"/migrations/{planned['id']}"
    assert act("run")["next"] == ["verify", "abandon", "run"]
    for step in ("cutover", "rollback", "sync"):
        answer = stocked.post(f"{moved}/{step}")
        assert (answer.status_code, answer.json()["code"]) == (409, "wrong-state")
        assert "open the new file in your application" in answer.json()["detail"]
    assert stocked.post(f"{moved}/finish").json()["code"] == "below-estimate"
    write(rows)  # although nothing should be written now
    verified = act("verify")["found"]["verify"]
    assert not verified["passed"]
    assert "differ by 10 rows: rows were added or deleted" in verified["rows"]["detail"]
    act("run")
    shown = act("verify")
    assert shown["found"]["verify"]["passed"], shown["found"]
    assert shown["next"] == ["verify", "finish", "abandon", "run"]
    query = {"anchor_set": "items", "queries": embeddings["second"][:1].tolist(), "k": 3}
    found = stocked.post("/stores/docs/search", json={**query, "target": "second"}).json()
    assert found["mode"] == "cascade"
    assert stocked.post(f"{moved}/finish").json()["state"] == "finished"
    assert stocked.get("/stores/docs").json()["encoder"] == "first"
    new = faiss.read_index(f"{path}.anchorage-{planned['id'][:8]}-new")
    assert (new.ntotal, new.d) == (400, embeddings["second"].shape[1])
    assert faiss.read_index(str(path)).d == 8
