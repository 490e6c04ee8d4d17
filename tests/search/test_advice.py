"""/advice: what to do with an index after a change of encoder."""

from __future__ import annotations

import numpy as np
import pytest

from app.maths.relevance import advice
from tests.translate.translations import PAIR


@pytest.fixture
def ask(stocked, evaluated):
    def post(judged=None, **more):
        if judged is not None:
            more["evaluation"] = evaluated(**judged)["id"]
        return stocked.post("/advice", json={**PAIR, "method": "graded", **more})

    return post


@pytest.fixture
def evaluated(stocked, finished):
    """The job of an evaluation."""

    def post(**more):
        body = {**PAIR, "method": "graded", **more}
        headers = {"Prefer": "respond-async"}
        job = stocked.post("/evaluate", json=body, headers=headers).json()
        ended = finished(stocked, job["id"])
        assert ended["state"] == "succeeded"
        return ended

    return post


@pytest.fixture
def judged(embeddings):
    """Thirty queries near one anchor each, which is their relevant document.

    The old encoder sees noise in place of them.
    """
    generator = np.random.default_rng(8)
    rows = list(range(30))
    noise = generator.normal(size=(30, 8))
    near = embeddings["second"][rows] + 0.01 * generator.normal(size=(30, 6))
    return {
        "queries": near.tolist(),
        "old_queries": noise.tolist(),
        "documents": embeddings["first"].tolist(),
        "native_documents": embeddings["second"].tolist(),
        "judgements": [{"query": row, "document": row} for row in rows],
    }


def good(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()


def by_name(answer):
    return {each["name"]: each for each in answer["options"]}


def test_without_judgements_it_says_that_only_fidelity_is_known(ask):
    answer = good(ask())
    assert (answer["basis"], answer["queries"]) == ("fidelity", 0)
    assert answer["advice"] == answer["options"][0]["name"] == "keep"  # 40 anchors
    assert 0 < answer["fidelity"]["measures"]["recall"]["value"] <= 1
    options = by_name(answer)
    assert {each["ndcg_10"] for each in options.values()} == {None}
    assert options["cascade"]["certainty"] == "unknown"
    assert "POST /compare" in answer["summary"]
    assert answer["summary"].startswith("The best possible option is keep (certainty: ")
    gone = good(ask(old_encoder_runs=False, text_exists=False))
    assert "its items cannot be encoded again" in gone["summary"]
    assert answer["comparison"] is None
    assert not options["native"]["possible"]
    assert "Register the new encoder" in options["native"]["reason"]


def test_judgements_decide_and_the_cheapest_of_the_best_comes_first(ask, judged, monkeypatch):
    monkeypatch.setattr(advice, "LEAST_DIFFERENCE", 0.2)
    answer = good(ask(judged, corpus_size=1_000))
    options = by_name(answer)
    assert (answer["basis"], answer["queries"]) == ("judgements", 30)
    assert answer["advice"] in ("cascade", "fuse")
    assert options[answer["advice"]]["over_keep"]["low"] > 0
    assert options[answer["advice"]]["writes"] == 0
    names = [each["name"] for each in answer["options"]]
    assert names.index("keep") == 4
    assert options["re-embed"]["certainty"] == "measured"


def test_the_size_of_the_store_is_that_of_its_sample(ask, stocked, embeddings):
    path = "/anchor-sets/items/samples/first"
    sample = {"vectors": embeddings["first"].tolist(), "store_size": 70_000}
    stocked.put(path, json=sample).raise_for_status()
    answer = good(ask())
    assert by_name(answer)["translate"]["writes"] == answer["fidelity"]["index"] == 70_000
    stocked.delete(path)


def test_an_evaluation_of_another_pair_or_without_judgements_is_refused(
    ask, evaluated, judged, refused
):
    job = evaluated(**judged)
    answer = good(ask(evaluation=job["id"]))
    assert answer["queries"] == 30
    turned = ask(evaluation=job["id"], source="second", target="first")
    refused(turned, 422, "invalid-request", "evaluation")
    items = {"vectors": judged["documents"], "native": judged["native_documents"]}
    refused(ask(evaluation=evaluated(**items)["id"]), 422, "invalid-request", "evaluation")
    refused(ask(evaluation="0" * 32), 404, "job-not-found", "evaluation")
    refused(ask(target="first"), 422, "invalid-request", "target")
