"""/console: the cards, and the verdict about a store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa
from starlette.testclient import TestClient

PAIR = {"source": "first", "target": "second", "anchor_set": "items"}
VERDICT = "/console/stores/docs/verdict"
ASKED = {"target": "second", "anchor_set": "items"}


def stock(client: TestClient, rows: int = 60) -> dict[str, np.ndarray]:
    """Two encoders, and the same items by both."""
    generator = np.random.default_rng(7)
    first = generator.normal(size=(rows, 8))
    second = first @ generator.normal(size=(8, 6))
    for name, vectors in (("first", first), ("second", second)):
        client.post("/encoders", json={"name": name, "dim": vectors.shape[1]}).raise_for_status()
    body = {"first": first.tolist(), "second": second.tolist()}
    client.post("/anchor-sets", json={"name": "items", "embeddings": body}).raise_for_status()
    return {"first": first, "second": second}


def connect(client: TestClient, lake: Path, vectors: np.ndarray) -> None:
    """A store `docs` of the items by `first`."""
    vectors = vectors.astype("float32")
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
    ids = pa.array([f"d{row}" for row in range(len(vectors))])
    lancedb.connect(lake).create_table("docs", pa.table({"id": ids, "vector": column}))
    store = {"kind": "lancedb", "address": "main", "collection": "docs", "encoder": "first"}
    answer = client.post("/stores", json={"name": "docs", **store})
    assert answer.status_code == 201, answer.text


def test_the_verdict_is_the_advice_of_the_api(
    serve: Callable[..., TestClient], tmp_path: Path
) -> None:
    client = serve(stores={"main": str(tmp_path)})
    connect(client, tmp_path, stock(client)["first"])
    answer = client.post("/advice", json={**PAIR, "corpus_size": 60}).json()
    page = client.get(VERDICT, params=ASKED).text
    assert f"<strong>{answer['advice'].capitalize()}.</strong>" in page
    recall = answer["fidelity"]["measures"]["recall"]["value"]
    assert f"Estimated recall@10: {100 * recall:.0f} %" in page
    assert page.count("<li><span>") == 5  # a bar for each option


def judge(client: TestClient, finished: Callable[..., dict[str, Any]], lake: Path) -> str:
    """Two encoders, a store and a finished evaluation of 30 judged queries; returns its id."""
    vectors = stock(client)
    connect(client, lake, vectors["first"])
    judged = {
        "queries": vectors["second"][:30].tolist(),
        "old_queries": np.random.default_rng(8).normal(size=(30, 8)).tolist(),
        "documents": vectors["first"].tolist(),
        "native_documents": vectors["second"].tolist(),
        "judgements": [{"query": row, "document": row} for row in range(30)],
    }
    job = client.post(
        "/evaluate", json={**PAIR, **judged}, headers={"Prefer": "respond-async"}
    ).json()
    assert finished(client, job["id"])["state"] == "succeeded"
    return job["id"]


def test_a_recorded_evaluation_decides(
    serve: Callable[..., TestClient], finished: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    client = serve(stores={"main": str(tmp_path)})
    job = judge(client, finished, tmp_path)
    plain = {"vectors": [[1.0] * 8, [2.0, *[1.0] * 7]], "native": [[1.0] * 6, [2.0, *[1.0] * 5]]}
    later = client.post(
        "/evaluate", json={**PAIR, **plain}, headers={"Prefer": "respond-async"}
    ).json()
    assert finished(client, later["id"])["state"] == "succeeded"
    page = client.get(VERDICT, params=ASKED).text
    assert f"/console/jobs/{job}" in page
    assert "30 judged queries" in page


def test_an_unknown_encoder_is_a_problem_in_its_card(
    serve: Callable[..., TestClient], tmp_path: Path
) -> None:
    client = serve(stores={"main": str(tmp_path)})
    connect(client, tmp_path, stock(client)["first"])
    answer = client.get(VERDICT, params={**ASKED, "target": "none"}, headers={"HX-Request": "true"})
    assert answer.status_code == 404
    assert "There is no encoder named" in answer.text
    assert "<html" not in answer.text
