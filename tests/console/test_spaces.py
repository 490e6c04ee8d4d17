"""/console/spaces: encoders, anchor sets, findings and drift."""

from __future__ import annotations

from collections.abc import Callable

from starlette.testclient import TestClient

from tests.api.conftest import Encoding
from tests.console.test_overview import stock


def test_an_empty_project_shows_the_command_to_begin_with(client: TestClient) -> None:
    assert "anchorage quickstart postgresql://" in client.get("/console/spaces").text


def test_sets_and_encoders_refer_to_each_other(client: TestClient) -> None:
    stock(client)
    page = client.get("/console/spaces").text
    assert "60 anchors, version 1, by 2 encoders" in page
    assert page.count('href="/console/spaces/items"') == 3
    assert 'hx-get="/console/spaces/items/health"' in page


def test_the_health_is_the_worst_finding_of_the_report(client: TestClient) -> None:
    stock(client)
    findings = client.get("/anchor-sets/items/report").json()["findings"]
    part = client.get("/console/spaces/items/health").text
    assert (findings[0]["code"] if findings else "healthy") in part


def test_the_report_explains_mismatched_rows(client: TestClient) -> None:
    vectors = stock(client, rows=120)
    swapped = vectors["second"].copy()
    swapped[[3, 70]] = swapped[[70, 3]]
    body = {"first": vectors["first"].tolist(), "second": swapped.tolist()}
    client.post("/anchor-sets", json={"name": "bad", "embeddings": body}).raise_for_status()
    part = client.get("/console/spaces/bad/report").text
    assert "mismatched-rows" in part
    assert "3, 70" in part
    assert "the same items" in part


def test_a_set_without_inputs_shows_how_to_send_vectors_for_drift(client: TestClient) -> None:
    stock(client)
    page = client.get("/console/spaces/items").text
    assert "curl http://127.0.0.1/anchor-sets/items/drift" in page


def test_an_encoder_that_the_service_runs_is_checked_for_drift(encoding: Encoding) -> None:
    page = encoding.http.get("/console/spaces").text
    assert 'hx-post="/console/encoders/minilm/check"' in page
    assert 'hx-post="/console/encoders/own/check"' not in page
    part = encoding.http.post("/console/encoders/minilm/check").text
    assert "<strong>minilm: unchanged.</strong>" in part


def test_an_unknown_set_is_not_found(
    locked: TestClient, new_key: Callable[..., str], bearing: Callable[[str], dict[str, str]]
) -> None:
    answer = locked.get("/console/spaces/none", headers=bearing(new_key(locked, "read")))
    assert answer.status_code == 404
    assert "There is no anchor set named" in answer.text
