"""/console: the cards, and the verdict about one pair."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from starlette.testclient import TestClient

PAIR = {"source": "first", "target": "second", "anchor_set": "items"}


def stock(client: TestClient, rows: int = 60) -> dict[str, np.ndarray]:
    """Two encoders, and the same items by both."""
    generator = np.random.default_rng(7)
    first = generator.normal(size=(rows, 8))
    second = first @ generator.normal(size=(8, 6))
    for name, vectors in (("first", first), ("second", second)):
        client.post("/encoders", json={"name": name, "dim": vectors.shape[1]}).raise_for_status()
    body = {"first": first.tolist(), "second": second.tolist()}
    client.post("/anchor-sets", json={"name": "items", "embeddings": body}).raise_for_status()
    return {"first": first, "second": second}


def test_an_empty_project_shows_the_command_to_begin_with(client: TestClient) -> None:
    assert "anchorage quickstart postgresql://" in client.get("/console").text
    assert "$ANCHORAGE_KEY" not in client.get("/console/spaces").text


def test_the_calls_of_a_page_have_a_key_on_a_server_with_keys(
    locked: TestClient, new_key: Callable[..., str], bearing: Callable[[str], dict[str, str]]
) -> None:
    locked.headers = bearing(new_key(locked, "admin"))
    stock(locked)
    page = locked.get("/console/spaces/items").text
    assert "Authorization: Bearer $ANCHORAGE_KEY" in page


def test_two_encoders_have_one_card_which_asks_which_one_is_old(client: TestClient) -> None:
    stock(client)
    page = client.get("/console").text
    assert page.count("<article") == 1
    query = "/console/pair?anchor_set=items&amp;source={}&amp;target={}"
    for old, new in (("first", "second"), ("second", "first")):
        assert query.format(old, new) in page
        opened = client.get("/console/pair", params={**PAIR, "source": old, "target": new}).text
        assert f"/console/verdict?source={old}&amp;target={new}&amp;anchor_set=items" in opened
        assert ">Report</a>" not in opened


def test_the_verdict_is_the_advice_of_the_api(client: TestClient) -> None:
    stock(client)
    answer = client.post("/advice", json=PAIR).json()
    page = client.get("/console/verdict", params=PAIR).text
    assert f"<strong>{answer['advice'].capitalize()}.</strong>" in page
    assert answer["translator"] in page
    recall = answer["fidelity"]["measures"]["recall"]["value"]
    assert f"Estimated recall@10: {100 * recall:.0f} %" in page
    assert page.count("<li><span>") == 5  # a bar for each option


def test_facts_about_the_index_change_the_verdict(client: TestClient) -> None:
    stock(client)
    page = client.get(
        "/console/verdict",
        params={**PAIR, "corpus_size": "5000", "old_encoder_runs": "false", "text_exists": ""},
    ).text
    keep = page.partition("<strong>Keep</strong>")[2].partition("</li>")[0]
    assert "impossible" in keep
    assert "It writes 5,000 items." in page


def judge(client: TestClient, finished: Callable[..., dict[str, Any]]) -> str:
    """Two encoders and a finished evaluation of 30 judged queries; returns its id."""
    vectors = stock(client)
    judged = {
        "queries": vectors["second"][:30].tolist(),
        "old_queries": np.random.default_rng(8).normal(size=(30, 8)).tolist(),
        "documents": vectors["first"].tolist(),
        "native_documents": vectors["second"].tolist(),
        "judgements": [{"query": row, "document": row} for row in range(30)],
    }
    job = client.post(
        "/evaluate", json={**PAIR, **judged}, headers={"Prefer": "respond-async"}
    ).json()
    assert finished(client, job["id"])["state"] == "succeeded"
    return job["id"]


def test_a_recorded_evaluation_decides(
    client: TestClient, finished: Callable[..., dict[str, Any]]
) -> None:
    job = judge(client, finished)
    plain = {"vectors": [[1.0] * 8, [2.0, *[1.0] * 7]], "native": [[1.0] * 6, [2.0, *[1.0] * 5]]}
    later = client.post(
        "/evaluate", json={**PAIR, **plain}, headers={"Prefer": "respond-async"}
    ).json()
    assert finished(client, later["id"])["state"] == "succeeded"
    page = client.get("/console/verdict", params=PAIR).text
    assert f"/console/jobs/{job}" in page
    assert "30 judged queries" in page
    back = {**PAIR, "source": "second", "target": "first"}
    assert job not in client.get("/console/verdict", params=back).text


def test_an_evaluation_of_an_earlier_translator_does_not_count(
    client: TestClient, finished: Callable[..., dict[str, Any]]
) -> None:
    job = judge(client, finished)
    more = {"first": [[1.0, 2, 3, 4, 5, 6, 7, 9]], "second": [[1.0, 0, 2, 0, 3, 0]]}
    client.post("/anchor-sets/items/items", json={"embeddings": more}).raise_for_status()
    answer = client.get("/console/verdict", params=PAIR)
    assert answer.status_code == 200
    assert job not in answer.text


def test_the_pages_answer_alike_on_postgres(
    serve: Callable[..., TestClient],
    postgres_url: str,
    finished: Callable[..., dict[str, Any]],
) -> None:
    client = serve(database_url=postgres_url)
    job = judge(client, finished)
    sample = {"vectors": [[1.0] * 6, [2.0, *[1.0] * 5]], "store_size": 10**11}
    client.put("/anchor-sets/items/samples/second", json=sample).raise_for_status()
    client.post("/translators", json=PAIR).raise_for_status()
    assert f"/console/jobs/{job}" in client.get("/console/verdict", params=PAIR).text
    assert "100,000,000,000" in client.get("/console/pairs").text


def test_an_unknown_encoder_is_a_problem_in_its_card(client: TestClient) -> None:
    stock(client)
    answer = client.get(
        "/console/verdict", params={**PAIR, "target": "none"}, headers={"HX-Request": "true"}
    )
    assert answer.status_code == 404
    assert "There is no encoder named" in answer.text
    assert "<html" not in answer.text


def test_a_card_that_must_wait_offers_to_try_again(serve: Callable[..., TestClient]) -> None:
    client = serve(rate_limit="1/hour")
    part = {"HX-Request": "true"}
    client.get("/console/verdict", params=PAIR, headers=part)
    answer = client.get("/console/verdict", params=PAIR, headers=part)
    assert answer.status_code == 429
    assert (
        'hx-get="/console/verdict?source=first&amp;target=second&amp;anchor_set=items"'
        in answer.text
    )
