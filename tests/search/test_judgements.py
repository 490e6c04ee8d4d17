"""/evaluate with judgements: what people find by each option."""

from __future__ import annotations

import pytest

ASYNC = "respond-async"


def good(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_click_is_grade_1_and_the_order_of_judgements_does_not_count(evaluate, judged):
    clicks = judged["judgements"]
    rows = good(evaluate())
    assert rows == good(evaluate(judgements=[{**each, "grade": 1} for each in clicks] + clicks[:5]))
    assert rows == good(evaluate(judgements=clicks[::-1]))


def test_an_option_without_its_vectors_says_what_is_missing(evaluate):
    body = good(evaluate(old_queries=...))
    names = ("keep", "fuse", "native-fuse")
    assert body["missing"] == {name: ["old_queries"] for name in names}
    assert (len(body["results"]), body["fuse"]) == (5, None)
    assert all(each["over_keep"] is None for each in body["results"].values())


def test_a_job_has_the_answer_of_a_request(evaluate, stocked, finished):
    change = {"weight": 0.7, "candidates": 3}
    job = finished(stocked, evaluate(ASYNC, **change).json()["id"])
    assert job["result"] == good(evaluate(**change))


ONE = {"query": 0, "document": 1}


@pytest.mark.parametrize(
    ("change", "field", "rows"),
    [
        ({"judgements": [ONE, {**ONE, "query": 30}]}, "judgements", [1]),
        ({"judgements": [{**ONE, "grade": 0}]}, "judgements", None),
        ({"judgements": [ONE, {**ONE, "query": 1}, {**ONE, "grade": 2}]}, "judgements", [2]),
        ({"old_queries": [[1.0] * 8] * 3}, "old_queries", None),
        ({"min_quality": {"recall": 0.1}}, "min_quality", None),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_wrong_request_is_refused_and_no_job_remains(
    evaluate, stocked, refused, change, field, rows
):
    refused(evaluate(ASYNC, **change), 422, "invalid-request", field, rows)
    assert stocked.get("/jobs").json() == {"jobs": []}
