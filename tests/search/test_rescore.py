"""/rescore: candidates of a store in the order of the new encoder."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from app.maths.relevance.fuse_weight import default_weight, held_out_cosine
from tests.translate.translations import PAIR

COUNTS = [4, 0, 7]


@pytest.fixture
def cloud(embeddings):
    """New queries, old queries, and the old vectors of each query's candidates."""
    generator = np.random.default_rng(3)
    queries = generator.normal(size=(3, 6))
    old_queries = generator.normal(size=(3, 8))
    return queries, old_queries, [generator.normal(size=(count, 8)) for count in COUNTS]


@pytest.fixture
def ask(stocked, cloud):
    """POST /rescore of the cloud; a value of ... leaves a field out."""
    queries, _, blocks = cloud

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


def cosines(query, vectors):
    return vectors @ query / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query)


def translated(client, block):
    answer = client.post("/translate", json={**PAIR, "method": "graded", "vectors": block.tolist()})
    return np.array(answer.json()["vectors"])


# --- scores and order -----------------------------------------------------------------------------


def test_a_cascade_scores_by_the_cosine_of_the_translated_candidate(ask, stocked, cloud):
    queries, _, blocks = cloud
    answer = ask().json()
    assert (answer["mode"], answer["weight"], answer["weight_chosen_by"]) == ("cascade", None, None)
    assert (answer["method"], answer["flags"]) == ("graded", [])
    assert answer["translator"].startswith("tr_")
    for query, block, result in zip(queries, blocks, answer["results"], strict=True):
        assert len(result["ids"]) == len(block)
        if len(block):
            scores = cosines(query, translated(stocked, block))
            order = [int(each.partition("-")[2]) for each in result["ids"]]
            assert order == np.argsort(-scores).tolist()
            np.testing.assert_allclose(result["scores"], scores[order], atol=1e-6)


@pytest.mark.parametrize("weight", [None, 0.4])
def test_fused_scores_are_standardised_for_each_query_and_weighted(
    ask, stocked, cloud, weight, embeddings
):
    queries, old_queries, blocks = cloud
    answer = ask(mode="fuse", old_queries=old_queries.tolist(), weight=weight).json()
    x, y = (torch.from_numpy(embeddings[name]).float() for name in ("first", "second"))
    used = default_weight(held_out_cosine(x, y)) if weight is None else weight
    assert answer["weight"] == used
    assert answer["weight_chosen_by"] == ("default" if weight is None else "request")
    for query, old, block, result in zip(
        queries, old_queries, blocks, answer["results"], strict=True
    ):
        if len(block):
            new_scores, old_scores = cosines(query, translated(stocked, block)), cosines(old, block)
            z_new = (new_scores - new_scores.mean()) / new_scores.std()
            z_old = (old_scores - old_scores.mean()) / old_scores.std()
            scores = used * z_new + (1 - used) * z_old
            order = [int(each.partition("-")[2]) for each in result["ids"]]
            assert order == np.argsort(-scores).tolist()
            np.testing.assert_allclose(result["scores"], scores[order], atol=1e-4)


def test_ids_are_returned_as_sent_and_may_repeat(ask, cloud):
    ids = ["a", 7, "7", 2**63 - 1]
    candidates = [{"ids": ids, "vectors": cloud[2][0].tolist()}]
    found = ask(queries=cloud[0][:1].tolist(), candidates=candidates).json()["results"][0]["ids"]
    assert sorted(map(repr, found)) == sorted(map(repr, ids))
    candidates[0]["ids"] = ["a"] * 4
    answer = ask(queries=cloud[0][:1].tolist(), candidates=candidates)
    assert answer.json()["results"][0]["ids"] == ["a"] * 4


def test_no_candidates_at_all_give_empty_results(ask, cloud):
    empty = [{"ids": [], "vectors": []}] * 3
    answer = ask(candidates=empty)
    assert answer.json()["results"] == [{"ids": [], "scores": []}] * 3
    assert ask(candidates=empty, queries=[[1.0] * 5] * 3).status_code == 422


def test_flags_name_query_and_candidate(ask, embeddings, cloud):
    blocks = [each.copy() for each in cloud[2]]
    blocks[2][5] = embeddings["first"].mean(axis=0)
    flags = ask(candidates=listed(blocks)).json()["flags"]
    assert flags == [{"query": 2, "candidate": 5, "code": "equals-anchor-mean"}]


# --- bad ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "status", "code", "field"),
    [
        ({"inputs": ["a", "b", "c"]}, 422, "not-exactly-one", "inputs"),
        ({"old_queries": [[1.0] * 8] * 3}, 422, "invalid-request", "old_queries"),
        ({"mode": "fuse"}, 422, "missing-field", "old_queries"),
        ({"queries": [[1.0] * 8] * 3}, 422, "dimension-mismatch", "queries"),
        ({"inputs": ["a"] * 3, "queries": ...}, 422, "encoder-needs-vectors", "inputs"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_request_is_refused(ask, refused, change, status, code, field):
    refused(ask(**change), status, code, field)


@pytest.mark.parametrize(
    ("one", "code", "field"),
    [
        ({"ids": ["a"], "vectors": [[1.0] * 8] * 2}, "invalid-request", "candidates.1.vectors"),
        ({"ids": ["a"], "vectors": [[1.0] * 6]}, "dimension-mismatch", "candidates.1.vectors"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_candidates_are_refused_by_query(ask, cloud, one, code, field):
    answer = ask(candidates=[listed(cloud[2])[0], one, listed(cloud[2])[2]])
    assert (answer.status_code, answer.json()["code"]) == (422, code), answer.text
    assert answer.json()["field"] == field


def test_the_limit_of_vectors_holds_for_all_candidates_together(ask, refused):
    answer = ask(candidates=listed([np.ones((700, 8))] * 3))
    refused(answer, 413, "too-many-vectors", "candidates")
    assert answer.json()["limit"] == 2_000
