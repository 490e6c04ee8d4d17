"""The pages of stores: what they hold, the verdict, and a migration by buttons."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from app.encoders.models.base import EncoderSpec
from app.types import EncoderKind
from tests.fixtures.http import client_of
from tests.fixtures.shop import DOCUMENTS, QUERIES, Shop, documents, embed
from tests.stores.cases.qdrant import LocalQdrantCase
from tests.waiting import until

PAIR = {"source": "old", "target": "new", "anchor_set": "items"}
PLAN = {"target": "new@items"}
PAGE = "/console/stores/docs"
VERDICT = f"{PAGE}/verdict?target=new&anchor_set=items"


def test_a_store_says_what_it_holds_and_what_to_do(shop: Shop) -> None:
    empty = shop.client.get("/console/stores").text
    assert "anchorage migrate ADDRESS --collection docs" in empty  # which is not PostgreSQL
    assert "lists none for this project" not in empty
    assert shop.client.get(PAGE).status_code == 404
    shop.connect(text_field=None)
    listed = shop.client.get("/console").text
    assert f'href="{PAGE}"' in listed
    facts = shop.client.get(f"{PAGE}/facts").text
    assert '<dd class="big">200</dd>' in facts
    assert "Its vectors look like those of old." in facts
    answer = shop.client.post("/advice", json={**PAIR, "index": 200, "text_exists": False}).json()
    page = shop.client.get(VERDICT).text
    assert f"<strong>{answer['advice'].capitalize()}, if the old model still answers." in page
    assert "<strong>Else cascade.</strong>" in page
    recall = answer["fidelity"]["measures"]["recall"]["value"]
    assert f"Estimated recall@10: {100 * recall:.0f} %" in page
    assert "among 200 items" in page
    assert "<figure>" not in page  # nothing is measured, so there is nothing to compare
    wrong = shop.client.get(VERDICT.replace("new", "none"), headers={"HX-Request": "true"})
    assert wrong.status_code == 404
    assert "There is no encoder named" in wrong.text
    assert "<html" not in wrong.text


def test_a_store_is_searched_on_its_page_and_the_model_of_its_name_is_loaded_at_a_start(
    tmp_path: Path, models: Path
) -> None:
    location = LocalQdrantCase().fill(tmp_path, documents("new"))
    settings = {"data_dir": tmp_path, "models_dir": models, "stores": {"main": location.url}}
    at = {"kind": "qdrant", "address": "main", "collection": location.collection}
    text, spec = "sentence-transformers", EncoderSpec(EncoderKind.sentence_transformers, "toy")
    with client_of(**settings) as client:
        client.post("/encoders", json={"name": "toy", "kind": text, "model": "toy"})
        client.post("/stores", json={**at, "name": "docs", "encoder": "toy", "text_field": "text"})
        assert "<option>toy</option>" in client.get(PAGE).text
        hits = client.get(f"{PAGE}/search", params={"text": "a document", "encoder": "toy"}).text
        assert hits.count("<li>document ") == 5
        assert "vectors" not in hits  # without a migration there is one side only
        client.put("/names/docs-vectors", json={"store": "docs"})
    with client_of(**settings) as client:
        until(lambda: client.get("/readyz").status_code == 200)
        assert client.app.state.services.encoders.loaded(spec) is not None


def test_a_recorded_evaluation_decides(
    shop: Shop, finished: Callable[..., dict[str, object]]
) -> None:
    shop.connect()
    judged = {
        "queries": embed(DOCUMENTS[:30], "new").tolist(),
        "old_queries": embed(DOCUMENTS[:30], "old").tolist(),
        "documents": embed(DOCUMENTS, "old").tolist(),
        "native_documents": embed(DOCUMENTS, "new").tolist(),
        "judgements": [{"query": row, "document": row} for row in range(30)],
    }
    plain = {
        name: embed(QUERIES, each).tolist()
        for name, each in (("vectors", "old"), ("native", "new"))
    }
    jobs = []
    for body in (judged, plain):  # only the first has judgements
        headers = {"Prefer": "respond-async"}
        jobs.append(shop.client.post("/evaluate", json={**PAIR, **body}, headers=headers).json())
        assert finished(shop.client, jobs[-1]["id"])["state"] == "succeeded"
    page = shop.client.get(VERDICT).text
    assert f"<code>{jobs[0]['id']}</code>" in page
    assert "30 judged queries" in page
    assert page.count("<li><span>") >= 2  # a bar for each option that was measured


def enabled(page: str) -> list[str]:
    """The steps whose buttons the page has, the large one first."""
    return re.findall(r'(?:action|href)="[^"]*/steps/([a-z]+)"', page)


def press(shop: Shop, step: str, status: int = 200, **fields: str) -> str:
    """Send the form of a step, and return the store's page once no job runs."""
    shown = shop.client.get(PAGE).text
    assert step in enabled(shown)
    if f'href="{PAGE}/steps/{step}"' in shown:  # a page asks again
        shown = shop.client.get(f"{PAGE}/steps/{step}").text
    [migration] = set(re.findall(r'name="migration" value="([0-9a-f]{32})"', shown))
    data = {"migration": migration, **fields}
    answer = shop.client.post(f"{PAGE}/steps/{step}", data=data)
    assert answer.status_code == status, answer.text
    assert str(answer.url).endswith(PAGE)
    while 'hx-trigger="every 2s"' in (part := shop.client.get(f"{PAGE}/live").text):
        time.sleep(0.05)
    return part


@pytest.fixture
def planned(shop: Shop) -> Shop:
    shop.connect()
    form = shop.client.get(PAGE).text
    assert enabled(form) == []
    assert '<option value="new@items">' in form
    answer = shop.client.post(f"{PAGE}/plan", data=PLAN)
    assert answer.status_code == 200, answer.text
    assert "are translated" in answer.text
    return shop


def test_a_migration_is_made_by_buttons_from_its_plan_to_its_end(planned: Shop) -> None:
    assert enabled(planned.client.get(PAGE).text) == ["run", "abandon"]
    assert "Nothing is written to the store yet." in planned.client.get("/console").text
    assert "Next: Run" in planned.client.get("/console").text
    page = press(planned, "run")
    assert "200 rows by the run" in page
    assert enabled(page) == ["verify", "sync", "abandon"]
    page = press(planned, "verify")
    assert page.count('badge good">passed') >= 3, page
    assert enabled(page) == ["cutover", "sync", "verify", "abandon"]
    assert "No name follows this store." in page
    assert "Next: Cut over" in planned.client.get("/console").text
    assert enabled(press(planned, "cutover")) == ["rollback", "finish", "sync", "verify"]
    assert f'hx-get="{PAGE}/facts"' in planned.client.get(PAGE).text  # the rows that there are now
    assert "with vectors translated to <code>new</code>" in planned.client.get("/console").text
    seen = planned.client.get("/stores/docs").json()
    assert (seen["encoder"], seen["space"]["verdict"], seen["dim"]) == ("new", "matches", 24)
    named = planned.client.put("/names/docs-vectors", json={"store": "docs"})
    assert named.status_code == 200, named.text
    page = press(planned, "rollback")
    assert enabled(page) == ["cutover", "sync", "verify", "abandon"]
    assert "by the name &#39;docs-vectors&#39; needs no change" in page
    press(planned, "cutover")
    assert "Nothing can undo it." in planned.client.get(f"{PAGE}/steps/finish").text
    wrong = {"migration": planned.client.get("/migrations").json()["migrations"][0]["id"]}
    assert planned.client.post(f"{PAGE}/steps/finish", data=wrong).status_code == 422
    page = press(planned, "finish", name="docs")
    assert enabled(page) == []
    assert re.search(r"translated: they are expected to find <strong>\d+ %</strong>", page)
    planned.client.post(f"{PAGE}/plan", data={"target": "old@items"})
    page = press(planned, "abandon")  # which leaves the store as the first has made it
    assert "Nothing is left to do." in page
    assert "A later migration to <code>old</code> was abandoned" in page


def test_limits_of_a_form_are_numbers_and_are_kept(planned: Shop) -> None:
    limits = {"price_per_million_tokens": "0.02", "max_price": "3"}
    [move] = planned.client.get("/migrations").json()["migrations"]
    body = {"migration": move["id"], **limits}
    for wrong in ({"max_price": "much"}, {"max_price": "-1"}, {"price_per_million_tokens": ""}):
        answer = planned.client.post(f"{PAGE}/steps/run", data={**body, **wrong})
        assert answer.status_code in (400, 422), answer.text
    press(planned, "run", **limits)
    kept = planned.client.get(f"/migrations/{move['id']}").json()["plan"]["limits"]
    assert (kept["price_per_million_tokens"], kept["max_price"]) == (0.02, 3)


def test_a_step_that_is_not_possible_has_no_page_and_changes_nothing(planned: Shop) -> None:
    for step in ("cutover", "finish"):
        answer = planned.client.get(f"{PAGE}/steps/{step}")
        assert (answer.status_code, "Press “Run”." in answer.text) == (409, True)
        assert f'href="{PAGE}">Back to docs</a>' in answer.text
    [migration] = planned.client.get("/migrations").json()["migrations"]
    own = {"migration": migration["id"]}
    assert planned.client.post(f"{PAGE}/steps/finish", data=own).status_code == 409
    other = planned.client.post(f"{PAGE}/steps/abandon", data={"migration": "0" * 32})
    assert other.status_code == 409
    assert "has another migration now" in other.text
    assert planned.client.get(f"{PAGE}/steps/delete").status_code == 422
    assert planned.client.get("/migrations").json()["migrations"][0]["state"] == "planned"
    press(planned, "run")
    assert "not-verified" in planned.client.get(f"{PAGE}/steps/cutover").text


def test_a_key_that_only_reads_sees_no_button_and_takes_no_step(
    locked: TestClient, new_key: Callable[..., str], bearing: Callable[[str], dict[str, str]]
) -> None:
    reader = bearing(new_key(locked, "read"))
    for path, form in (("plan", PLAN), ("steps/run", {"migration": "0" * 32})):
        answer = locked.post(f"{PAGE}/{path}", data=form, headers=reader)
        assert answer.status_code == 403
        assert "needs a key with the scope" in answer.text
