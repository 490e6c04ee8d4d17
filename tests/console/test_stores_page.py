"""The pages of stores."""

from __future__ import annotations

from starlette.testclient import TestClient

from tests.fixtures.shop import Shop


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
