"""/console/pairs: the matrix, the report of a translator, and its parts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.console.test_overview import PAIR, stock

FORM = {"content-type": "application/x-www-form-urlencoded"}


@pytest.fixture
def fitted(client: TestClient) -> dict[str, Any]:
    """A translator of `first` to `second`, with its report."""
    stock(client, rows=80)
    answer = client.post("/translators", json=PAIR)
    assert answer.status_code == 201, answer.text
    return answer.json()


def test_an_empty_project_teaches_the_next_step(client: TestClient) -> None:
    assert "curl -X PUT http://127.0.0.1/anchor-sets/faq/embeddings/new" in (
        client.get("/console/pairs").text
    )


def test_a_cell_shows_the_estimate_in_numbers_and_words(
    client: TestClient, fitted: dict[str, Any]
) -> None:
    page = client.get("/console/pairs").text
    recall = fitted["report"]["estimate"]["measures"]["recall"]["value"]
    word = "high" if recall >= 0.8 else "medium" if recall >= 0.5 else "low"
    assert f'href="/console/pairs/{fitted["id"]}"' in page
    assert f"first to second: {word}, recall {100 * recall:.0f} %" in page
    assert "Measure second to first" in page


def test_the_best_translator_of_a_pair_is_shown(client: TestClient, fitted: dict[str, Any]) -> None:
    worse = client.post(
        "/translators", json={**PAIR, "method": "irp", "options": {"omega": 1, "delta": 1.0}}
    ).json()
    measures = worse["report"]["estimate"]["measures"]
    assert (
        measures["recall"]["value"] < (fitted["report"]["estimate"]["measures"]["recall"]["value"])
    )
    page = client.get("/console/pairs").text
    assert fitted["id"] in page
    assert worse["id"] not in page
    assert worse["id"] in client.get(f"/console/pairs/{fitted['id']}").text


def test_a_pair_without_translator_is_measured_by_a_job(
    client: TestClient, finished: Callable[..., dict[str, Any]]
) -> None:
    stock(client)
    answer = client.post(
        "/console/pairs",
        content="source=second&target=first&anchor_set=items",
        headers=FORM,
        follow_redirects=False,
    )
    assert answer.status_code == 303
    job_id = answer.headers["location"].removeprefix("/console/jobs/")
    assert finished(client, job_id)["state"] == "succeeded"
    assert "second to first: " in client.get("/console/pairs").text


def test_a_key_that_only_reads_cannot_start_a_job(
    locked: TestClient, new_key: Callable[..., str], bearing: Callable[[str], dict[str, str]]
) -> None:
    answer = locked.post(
        "/console/pairs",
        content="source=a&target=b&anchor_set=c",
        headers={**FORM, **bearing(new_key(locked, "read"))},
    )
    assert answer.status_code == 403
    assert "needs a key with the scope" in answer.text


def test_the_report_has_every_part(client: TestClient, fitted: dict[str, Any]) -> None:
    page = client.get(f"/console/pairs/{fitted['id']}").text
    for title in (
        "What it estimates",
        "Learning curve",
        "By size of the index",
        "Against doing nothing",
        "Calibration of scores",
        "Findings about the anchors",
        "Methods compared for retrieval",
        "Flags of translated rows",
    ):
        assert title in page, title
    assert " style=" not in page
    assert not re.search(r"<script(?![^>]* src=)", page)


def test_a_form_field_changes_the_size_of_the_estimate(
    client: TestClient, fitted: dict[str, Any]
) -> None:
    path = f"/console/pairs/{fitted['id']}/estimate"
    part = client.get(path, params={"index": 5_000}).text
    expected = client.get(f"/translators/{fitted['id']}", params={"index": 5_000}).json()
    recall = expected["report"]["estimate"]["measures"]["recall"]["value"]
    assert "<strong>5,000</strong>" in part
    assert f"{recall:.3f}" in part
    assert "<html" not in part
    assert client.get(path, params={"index": ""}).status_code == 200
    assert client.get(path, params={"index": 1}).status_code == 422


def test_the_calibration_maps_old_scores(client: TestClient, fitted: dict[str, Any]) -> None:
    part = client.get(f"/console/pairs/{fitted['id']}/calibration").text
    assert "New score by old score" in part
    assert "<polyline" in part


def test_too_few_anchors_estimate_nothing_and_say_so(client: TestClient) -> None:
    stock(client, rows=6)
    made = client.post("/translators", json=PAIR).json()
    page = client.get(f"/console/pairs/{made['id']}").text
    assert "Nothing can be estimated" in page
    assert "few-anchors" in page
    assert "at least 10 distinct anchors" in (
        client.get(f"/console/pairs/{made['id']}/calibration").text
    )


def test_the_translator_of_an_earlier_version_says_so_and_leaves_the_matrix(
    client: TestClient, fitted: dict[str, Any]
) -> None:
    more = {"first": [[1.0, 2, 3, 4, 5, 6, 7, 9]], "second": [[1.0, 0, 2, 0, 3, 0]]}
    client.post("/anchor-sets/items/items", json={"embeddings": more}).raise_for_status()
    assert "has a newer version" in client.get(f"/console/pairs/{fitted['id']}").text
    assert fitted["id"] not in client.get("/console/pairs").text
