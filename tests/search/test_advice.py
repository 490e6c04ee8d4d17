"""/advice: what to do with an index after a change of encoder."""

from __future__ import annotations

import pytest

from app.maths.relevance import advice
from tests.translate.translations import PAIR


@pytest.fixture
def ask(stocked):
    return lambda **more: stocked.post("/advice", json={**PAIR, "method": "graded", **more})


@pytest.fixture
def evaluated(stocked, evaluate, finished):
    """The id of the job of an evaluation."""

    def post(**more):
        ended = finished(stocked, evaluate("respond-async", **more).json()["id"])
        assert ended["state"] == "succeeded"
        return ended["id"]

    return post


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
    assert answer["summary"].startswith("Keep leads. Whether ")
    gone = good(ask(old_encoder_runs=False, text_exists=False))
    assert "20 judged queries tell" in gone["summary"]
    assert answer["comparison"] is None
    assert not options["native"]["possible"]
    assert "Register the new encoder" in options["native"]["reason"]
    cheap = {"text_exists": True, "price": 4, "seconds": 2_000}
    answer = good(ask(**cheap))
    assert (answer["advice"], answer["basis"]) == ("re-embed", "cost")
    assert "costs 4.00 and takes 33 min" in answer["summary"]
    for dearer in ({"seconds": 4_000}, {"price": 21}, {"price": None}, {"text_exists": None}):
        assert good(ask(**{**cheap, **dearer}))["basis"] == "fidelity"


def test_judgements_decide_and_the_cheapest_of_the_best_comes_first(ask, evaluated, monkeypatch):
    monkeypatch.setattr(advice, "LEAST_DIFFERENCE", 0.2)
    answer = good(ask(evaluation=evaluated()))
    options = by_name(answer)
    assert (answer["basis"], answer["queries"]) == ("judgements", 30)
    assert answer["advice"] in ("cascade", "fuse")
    assert options[answer["advice"]]["over_keep"]["low"] > 0
    names = [each["name"] for each in answer["options"]]
    assert names.index("keep") == 4
    assert options["re-embed"]["certainty"] == "measured"


def test_an_evaluation_of_another_pair_or_without_judgements_is_refused(
    ask, evaluated, judged, refused
):
    job = evaluated()
    assert good(ask(evaluation=job))["queries"] == 30
    turned = ask(evaluation=job, source="second", target="first")
    refused(turned, 422, "invalid-request", "evaluation")
    unjudged = dict.fromkeys(judged, ...)
    items = {"vectors": judged["documents"], "native": judged["native_documents"]}
    job = evaluated(**unjudged, **items)
    refused(ask(evaluation=job), 422, "invalid-request", "evaluation")
    refused(ask(evaluation="0" * 32), 404, "job-not-found", "evaluation")
    refused(ask(target="first"), 422, "invalid-request", "target")
