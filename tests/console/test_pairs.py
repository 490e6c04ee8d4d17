"""/console/pairs: the matrix, the report of a translator, and its parts."""

from __future__ import annotations

import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.console.test_overview import PAIR, stock


@pytest.fixture
def fitted(client: TestClient) -> dict[str, Any]:
    """A translator of `first` to `second`, with its report."""
    stock(client, rows=80)
    answer = client.post("/translators", json=PAIR)
    assert answer.status_code == 201, answer.text
    return answer.json()


def test_an_empty_project_shows_the_command_to_begin_with(client: TestClient) -> None:
    assert "anchorage quickstart postgresql://" in client.get("/console/pairs").text
    assert "anchorage quickstart postgresql://" in client.get("/console/pair").text


def test_a_row_shows_the_estimate_and_opens_the_report(
    client: TestClient, fitted: dict[str, Any]
) -> None:
    page = client.get("/console/pairs").text
    recall = fitted["report"]["estimate"]["measures"]["recall"]["value"]
    assert f'<a href="/console/pairs/{fitted["id"]}">{100 * recall:.0f} %</a>' in page
    assert page.count("not measured") == 1  # the other direction
    for tab in ("pair", "map", "try"):
        shown = client.get(f"/console/{tab}", params=PAIR).text
        assert f'<a href="/console/pairs/{fitted["id"]}">Report</a>' in shown


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


def test_the_report_has_every_part(client: TestClient, fitted: dict[str, Any]) -> None:
    page = client.get(f"/console/pairs/{fitted['id']}").text
    for title in (
        "What it estimates",
        "Learning curve",
        "Findings about the anchors",
        "Methods compared for retrieval",
    ):
        assert title in page, title
    assert " style=" not in page
    assert not re.search(r"<script(?![^>]* src=)", page)


def test_too_few_anchors_estimate_nothing_and_say_so(client: TestClient) -> None:
    stock(client, rows=6)
    made = client.post("/translators", json=PAIR).json()
    page = client.get(f"/console/pairs/{made['id']}").text
    assert "Nothing can be estimated" in page
    assert "few-anchors" in page


def test_the_translator_of_an_earlier_version_says_so_and_leaves_the_matrix(
    client: TestClient, fitted: dict[str, Any]
) -> None:
    more = {"first": [[1.0, 2, 3, 4, 5, 6, 7, 9]], "second": [[1.0, 0, 2, 0, 3, 0]]}
    client.post("/anchor-sets/items/items", json={"embeddings": more}).raise_for_status()
    assert "has a newer version" in client.get(f"/console/pairs/{fitted['id']}").text
    assert fitted["id"] not in client.get("/console/pairs").text
