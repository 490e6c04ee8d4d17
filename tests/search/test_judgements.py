"""/evaluate with judgements: what people find by each option."""

from __future__ import annotations

import numpy as np
import pytest

from tests.translate.translations import PAIR

ASYNC = {"Prefer": "respond-async"}
QUERIES, DOCUMENTS = 12, 50


@pytest.fixture(scope="module")
def search() -> dict[str, np.ndarray]:
    """Queries and documents by both encoders of `embeddings`."""
    generator = np.random.default_rng(7)
    generator.normal(size=(40, 8))
    rotation, _ = np.linalg.qr(generator.normal(size=(8, 8)))
    first = np.random.default_rng(1).normal(size=(QUERIES + DOCUMENTS, 8)) + 0.5
    noise = np.random.default_rng(2).normal(size=(QUERIES + DOCUMENTS, 6))
    second = 3.0 * (first @ rotation)[:, :6] + 0.3 * noise - 2.0
    return {
        "queries": second[:QUERIES],
        "old_queries": first[:QUERIES] + np.random.default_rng(3).normal(size=(QUERIES, 8)),
        "documents": first[QUERIES:],
        "native_documents": second[QUERIES:],
    }


@pytest.fixture(scope="module")
def judgements(search) -> list[dict[str, float]]:
    """Four documents near each query but the last, which has none that is relevant."""
    near = (search["queries"] @ search["native_documents"].T).argsort(axis=1)[:, ::-1][:, :20]
    chosen = np.random.default_rng(4).permuted(near, axis=1)[:, :4].tolist()
    found = [
        {"query": query, "document": document, "grade": grade}
        for query, row in enumerate(chosen)
        for document, grade in zip(row, (3, 2, 1, 0), strict=True)
    ]
    return [{**each, "grade": 0} if each["query"] == QUERIES - 1 else each for each in found]


@pytest.fixture
def ask(stocked, search, judgements):
    """POST /evaluate of the judged queries; a value of ... leaves a field out."""

    def post(headers=None, **more):
        body = {
            **PAIR,
            "method": "graded",
            **{name: vectors.tolist() for name, vectors in search.items()},
            "judgements": judgements,
            **more,
        }
        body = {key: value for key, value in body.items() if value is not ...}
        return stocked.post("/evaluate", json=body, headers=headers)

    return post


def good(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_ids_and_rows_are_the_same_and_a_click_is_grade_1(ask, judgements):
    clicks = [
        {"query": each["query"], "document": each["document"]}
        for each in judgements
        if each["grade"]
    ]
    rows = good(ask(judgements=clicks))
    assert rows == good(ask(judgements=[{**each, "grade": 1} for each in clicks] + clicks[:5]))
    named = [{"query": f"q{e['query']}", "document": f"d{e['document']}"} for e in clicks]
    ids = {
        "query_ids": [f"q{row}" for row in range(QUERIES)],
        "document_ids": [f"d{row}" for row in range(DOCUMENTS)],
    }
    assert rows == good(ask(judgements=named[::-1], **ids))


def test_an_option_without_its_vectors_says_what_is_missing(ask):
    body = good(ask(old_queries=...))
    names = ("keep", "fuse", "native-fuse")
    assert body["missing"] == {name: ["old_queries"] for name in names}
    assert (len(body["results"]), body["fuse"]) == (5, None)
    assert all(each["over_keep"] is None for each in body["results"].values())


def test_documents_that_are_anchors_are_counted(ask, embeddings, search):
    documents = np.concatenate([search["documents"][:-3], 3 * embeddings["first"][4:7]])
    body = good(ask(documents=documents.tolist()))
    assert (body["anchors"], body["anchor_documents"]) == (40, 3)
    assert good(ask())["anchor_documents"] == 0


def test_a_job_has_the_answer_of_a_request_as_its_result(ask, stocked, finished):
    ids = {
        "query_ids": [f"q{row}" for row in range(QUERIES)],
        "judgements": [{"query": "q3", "document": 7}, {"query": "q5", "document": 7}],
    }
    for change in ({}, {"weight": 0.7, "candidates": 3, "native_documents": ...}, ids):
        answer = ask(ASYNC, **change)
        assert answer.status_code == 202, answer.text
        job = finished(stocked, answer.json()["id"])
        assert (job["state"], job["error"], job["kind"]) == ("succeeded", None, "evaluate")
        assert job["progress"]["done"] == job["progress"]["total"] > 0
        assert job["result"] == good(ask(**change))


def judged(query, **more):
    return {"query": query, "document": 1, **more}


REPEATED = ("invalid-request", "judgements", [2])
UNKNOWN = ("invalid-request", "judgements", list(range(20)))


@pytest.mark.parametrize(
    ("change", "code", "field", "rows"),
    [
        ({"judgements": [judged(0), judged(12)]}, "invalid-request", "judgements", [1]),
        ({"judgements": [judged(0, grade=0)]}, "invalid-request", "judgements", None),
        ({"judgements": [judged(0), judged(1), judged(0, grade=2)]}, *REPEATED),
        # a problem names at most 20 rows
        ({"query_ids": [str(row) for row in range(12)]}, *UNKNOWN),
        ({"old_queries": [[1.0] * 8] * 3}, "invalid-request", "old_queries", None),
        ({"min_quality": {"recall": 0.1}}, "invalid-request", "min_quality", None),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_wrong_request_is_refused_and_no_job_remains(
    ask, stocked, refused, change, code, field, rows
):
    answer = ask(ASYNC, **change)
    assert answer.json()["code"] == code, answer.text
    refused(answer, 422, code, field, rows)
    assert stocked.get("/jobs").json() == {"jobs": []}
