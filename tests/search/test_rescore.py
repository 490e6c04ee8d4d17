"""/rescore: candidates of a store in the order of the new encoder."""

from __future__ import annotations

import numpy as np
import pytest

from tests.translate.translations import PAIR

COUNTS = [4, 0, 7]


@pytest.fixture
def cloud(embeddings):
    """New queries, and the old vectors of each query's candidates."""
    generator = np.random.default_rng(3)
    queries = generator.normal(size=(3, 6))
    return queries, [generator.normal(size=(count, 8)) for count in COUNTS]


@pytest.fixture
def ask(stocked, cloud):
    """POST /rescore of the cloud; a value of ... leaves a field out."""
    queries, blocks = cloud

    def post(**more):
        body = {**PAIR, "method": "graded", "queries": queries.tolist(), **more}
        body.setdefault("candidates", listed(blocks))
        return stocked.post(
            "/rescore", json={key: value for key, value in body.items() if value is not ...}
        )

    return post


def listed(blocks):
    return [
        {"ids": [f"{query}-{row}" for row in range(len(block))], "vectors": block.tolist()}
        for query, block in enumerate(blocks)
    ]


def test_a_cascade_scores_by_the_cosine_of_the_translated_candidate(ask, stocked, cloud):
    answer = ask().json()
    alone = {"scores": ["translated"], "weight": None, "weight_chosen_by": None}
    assert (answer["mode"], answer["combined"]) == ("cascade", alone)
    assert (answer["method"], answer["flags"]) == ("graded", [])
    assert answer["translator"].startswith("tr_")
    for query, block, result in zip(*cloud, answer["results"], strict=True):
        expected = np.zeros(0)
        if len(block):
            body = {**PAIR, "method": "graded", "vectors": block.tolist()}
            made = np.array(stocked.post("/translate", json=body).json()["vectors"])
            expected = made @ query / np.linalg.norm(made, axis=1) / np.linalg.norm(query)
        order = [int(each.partition("-")[2]) for each in result["ids"]]
        assert order == np.argsort(-expected).tolist()
        np.testing.assert_allclose(result["scores"], expected[order], atol=1e-4)


def test_ids_are_returned_as_sent_and_may_repeat_and_there_may_be_none(ask, cloud):
    for ids in (["a", 7, "7", 2**63 - 1], ["a"] * 4):
        candidates = [{"ids": ids, "vectors": cloud[1][0].tolist()}]
        [found] = ask(queries=cloud[0][:1].tolist(), candidates=candidates).json()["results"]
        assert sorted(map(repr, found["ids"])) == sorted(map(repr, ids))
    empty = [{"ids": [], "vectors": []}] * 3
    assert ask(candidates=empty).json()["results"] == [{"ids": [], "scores": []}] * 3
    assert ask(candidates=empty, queries=[[1.0] * 5] * 3).status_code == 422


ONE_TOO_MANY = {"ids": ["a"], "vectors": [[1.0] * 8] * 2}
NARROW = {"ids": ["a"], "vectors": [[1.0] * 6]}


@pytest.mark.parametrize(
    ("change", "status", "code", "field"),
    [
        ({"inputs": ["a", "b", "c"]}, 422, "not-exactly-one", "inputs"),
        (
            {"mode": "cascade", "old_queries": [[1.0] * 8] * 3},
            422,
            "invalid-request",
            "old_queries",
        ),
        ({"queries": [[1.0] * 8] * 3}, 422, "dimension-mismatch", "queries"),
        ({"candidates": [ONE_TOO_MANY] * 3}, 422, "invalid-request", "candidates.0.vectors"),
        ({"candidates": [NARROW] * 3}, 422, "dimension-mismatch", "candidates.0.vectors"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_request_is_refused(ask, refused, change, status, code, field):
    refused(ask(**change), status, code, field)


def test_the_limit_of_vectors_holds_for_all_candidates_together(ask, refused):
    answer = ask(candidates=listed([np.ones((700, 8))] * 3))
    refused(answer, 413, "too-many-vectors", "candidates")
    assert answer.json()["limit"] == 2_000
