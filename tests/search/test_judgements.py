"""/evaluate with judgements: what people find by each option."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from app.maths.relevance.fuse_weight import default_weight, held_out_cosine
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


@pytest.fixture
def default(embeddings):
    """The weight without judgements of the set `items`."""
    x, y = (torch.from_numpy(embeddings[name]).float() for name in ("first", "second"))
    return default_weight(held_out_cosine(x, y))


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


@pytest.mark.parametrize(
    ("left_out", "results", "missing"),
    [
        (
            ["old_queries"],
            5,
            {name: ["old_queries"] for name in ("keep", "fuse", "native-fuse")},
        ),
        (
            ["queries", "native_documents"],
            1,
            {
                "bridge": ["queries"],
                "cascade": ["queries"],
                "fuse": ["queries"],
                "native-cascade": ["native_documents", "queries"],
                "native-fuse": ["native_documents", "queries"],
                "translate": ["queries"],
                "re-embed": ["native_documents", "queries"],
            },
        ),
    ],
)
def test_an_option_without_its_vectors_says_what_is_missing(ask, left_out, results, missing):
    body = good(ask(**dict.fromkeys(left_out, ...)))
    assert len(body["results"]) == results
    assert body["missing"] == missing
    assert (body["fuse"] is None) == ("fuse" in missing)
    if "keep" in missing:
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


@pytest.mark.parametrize(
    ("change", "code", "field", "rows"),
    [
        (
            {"judgements": [{"query": 0, "document": 1}, {"query": 12, "document": 1}]},
            "invalid-request",
            "judgements",
            [1],
        ),
        (
            {"judgements": [{"query": 0, "document": 1, "grade": 0}]},
            "invalid-request",
            "judgements",
            None,
        ),
        (
            {
                "judgements": [
                    {"query": 0, "document": 1},
                    {"query": 0, "document": 2},
                    {"query": 0, "document": 1, "grade": 2},
                ]
            },
            "invalid-request",
            "judgements",
            [2],
        ),
        (
            {"query_ids": [f"q{row}" for row in range(12)]},
            "invalid-request",
            "judgements",
            list(range(20)),  # a problem names at most 20 rows
        ),
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
