"""The pages of stores."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import lancedb
import numpy as np
from starlette.testclient import TestClient

from app.console.stores_page import SHOWN_CHARACTERS, shown_text
from tests.api.resources.stores.conftest import Shop
from tests.api.resources.stores.conftest import case as case
from tests.api.resources.stores.conftest import filled as filled
from tests.api.resources.stores.conftest import shop as shop

PART = {"HX-Request": "true"}
WORDS = ("horses", "ships", "bread", "winter", "music")


def test_the_list_of_stores_is_the_first_page(client: TestClient) -> None:
    assert "anchorage quickstart postgresql://" in client.get("/console/stores").text
    assert client.get("/console/stores/none").status_code == 404


def test_a_store_says_what_it_holds_and_what_to_do(shop: Shop) -> None:
    shop.connect()
    listed = shop.client.get("/console").text
    assert 'href="/console/stores/docs"' in listed
    assert "/console/stores/docs/verdict?target=new&amp;anchor_set=items&amp;brief=true" in listed
    facts = shop.client.get("/console/stores/docs/facts").text
    assert '<dd class="big">200</dd>' in facts
    assert "Its vectors look like those of old." in facts
    verdict = "/console/stores/docs/verdict?target=new&anchor_set=items"
    assert "among 200 items" in shop.client.get(verdict).text
    assert "nDCG@10" in shop.client.get(f"{verdict}&brief=true").text
    page = shop.client.get("/console/stores/docs").text
    assert "The service runs no other encoder of texts" in page
    assert "<strong>0</strong> of at most" in page


def test_a_store_is_searched_with_a_text_by_both_encoders(shop: Shop) -> None:
    shop.connect()
    model = {"kind": "sentence-transformers", "model": "all-MiniLM-L6-v2"}
    shop.client.post("/encoders", json={"name": "minilm", **model}).raise_for_status()
    anchors = {"name": "bridge", "store": "docs", "encoders": ["minilm"]}
    shop.client.get("/jobs").raise_for_status()  # builds the routes before a model is loaded
    job = shop.client.post("/anchor-sets", json=anchors).json()
    while shop.client.get(f"/jobs/{job['id']}").json()["state"] in ("queued", "running"):
        time.sleep(0.05)
    search = "/console/stores/docs/search"
    form = {"pair": "minilm@bridge", "text": "document 7<b>"}
    found = shop.client.post(search, data=form, headers=PART).text
    assert "<html" not in found
    assert found.count("<li>") == found.count(", native") == 10
    assert "<code>old</code>, the old encoder" in found
    assert "The service does not run it" in found
    page = shop.client.post(search, data=form).text  # without the script
    assert "<html" in page
    assert 'value="document 7&lt;b&gt;"' in page
    assert page.count(", native") == 10
    for form, status in (
        ({"pair": "minilm@bridge", "text": ""}, 422),
        ({"pair": "new@items", "text": "document 7"}, 422),
        ({"pair": "nobody@items", "text": "document 7"}, 404),
    ):
        assert shop.client.post(search, data=form).status_code == status


def test_old_and_new_results_stand_next_to_each_other(
    serve: Callable[..., TestClient], tmp_path: Path
) -> None:
    texts = [f"document {each} about {word}" for each, word in enumerate(WORDS)]
    client = serve(stores={"main": str(tmp_path / "lake")})
    client.get("/jobs").raise_for_status()  # builds the routes before a model is loaded
    for name in ("minilm", "again"):
        model = {"kind": "sentence-transformers", "model": "all-MiniLM-L6-v2"}
        client.post("/encoders", json={"name": name, **model}).raise_for_status()
    answer = client.post("/v1/embeddings", json={"model": "minilm", "input": texts}).json()
    rows = [
        {"id": each, "text": text, "vector": np.float32(found["embedding"])}
        for each, (text, found) in enumerate(zip(texts, answer["data"], strict=True))
    ]
    lancedb.connect(tmp_path / "lake").create_table("docs", rows)
    store = {"kind": "lancedb", "address": "main", "collection": "docs", "text_field": "text"}
    answer = client.post("/stores", json={"name": "docs", "encoder": "minilm", **store})
    assert answer.status_code == 201, answer.text
    page = client.get("/console/stores/docs").text
    assert '<option value="again@">again, without anchors</option>' in page
    assert "anchorage quickstart --source store:docs" in page
    form = {"pair": "again@", "text": "about horses"}
    found = client.post("/console/stores/docs/search", data=form, headers=PART).text
    old, new = found.split("<ol")[1:]
    for side in (old, new):
        assert side.count("<li>") == len(WORDS)
        assert "about horses" in side.partition("</li>")[0]
    assert found.count("in both") == 2 * len(WORDS)
    assert ", native" in new
    assert ", native" not in old


def test_long_texts_and_rows_without_a_text_are_cut() -> None:
    assert shown_text({"body": "short"}, "body") == "short"
    assert len(shown_text({"body": "x" * 5_000}, "body")) == SHOWN_CHARACTERS + 1
    assert json.loads(shown_text({"a": 1, "b": "é"}, "body")) == {"a": 1, "b": "é"}
