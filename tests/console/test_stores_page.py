"""The pages of stores."""

from __future__ import annotations

import json
import time

from starlette.testclient import TestClient

from app.console.stores_page import SHOWN_CHARACTERS, shown_text
from tests.api.resources.stores.conftest import Shop
from tests.api.resources.stores.conftest import case as case
from tests.api.resources.stores.conftest import shop as shop


def test_an_empty_project_shows_the_command_to_begin_with(client: TestClient) -> None:
    assert "anchorage quickstart postgresql://" in client.get("/console/stores").text
    assert client.get("/console/stores/none").status_code == 404


def test_a_store_says_what_it_holds_and_what_to_do(shop: Shop) -> None:
    shop.connect()
    listed = shop.client.get("/console/stores").text
    assert 'href="/console/stores/docs"' in listed
    page = shop.client.get("/console/stores/docs").text
    assert '<option value="new@items">' in page
    assert "anchorage migrate docs --target new --anchor-set items" in page
    facts = shop.client.get("/console/stores/docs/facts").text
    assert '<dd class="big">200</dd>' in facts
    assert "Its vectors look like those of old." in facts
    plan = {"store": "docs", "target": "new", "anchor_set": "items"}
    shop.client.post("/migrations", json=plan).raise_for_status()
    assert "planned" in shop.client.get("/console/stores").text
    assert "anchorage migrate run docs" in shop.client.get("/console/stores/docs").text


def test_a_store_is_searched_with_a_text(shop: Shop) -> None:
    shop.connect()
    model = {"kind": "sentence-transformers", "model": "all-MiniLM-L6-v2"}
    shop.client.post("/encoders", json={"name": "minilm", **model}).raise_for_status()
    anchors = {"name": "bridge", "store": "docs", "encoders": ["minilm"]}
    shop.client.get("/jobs").raise_for_status()  # builds the routes before a model is loaded
    job = shop.client.post("/anchor-sets", json=anchors).json()
    while shop.client.get(f"/jobs/{job['id']}").json()["state"] in ("queued", "running"):
        time.sleep(0.05)
    search = "/console/stores/docs/search"
    found = shop.client.post(search, data={"pair": "minilm@bridge", "text": "document 7<b>"})
    assert found.status_code == 200, found.text
    assert found.text.count("<tr><td") == 10
    assert found.text.count('<span class="badge good">native</span>') == 10
    assert "document 7&lt;b&gt;" in found.text
    for form, status in (
        ({"pair": "minilm@bridge", "text": ""}, 422),
        ({"pair": "new@items", "text": "document 7"}, 422),
        ({"pair": "nobody@items", "text": "document 7"}, 404),
    ):
        assert shop.client.post(search, data=form).status_code == status


def test_long_texts_and_rows_without_a_text_are_cut() -> None:
    assert shown_text({"body": "short"}, "body") == "short"
    assert len(shown_text({"body": "x" * 5_000}, "body")) == SHOWN_CHARACTERS + 1
    assert json.loads(shown_text({"a": 1, "b": "é"}, "body")) == {"a": 1, "b": "é"}
