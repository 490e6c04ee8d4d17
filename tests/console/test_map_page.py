"""/console/map: the page, its numbers, its points and the texts of items."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from app.maths.quality.crossfit import hold_out
from app.services.translators import pair_map
from tests.api.conftest import TEXTS, Encoding
from tests.console.test_overview import stock

PAIR = "anchor_set=items&source=first&target=second"
FRAGMENT = {"hx-request": "true"}


def read_points(content: bytes) -> dict[str, np.ndarray]:
    numbers = np.frombuffer(content, "<f4")
    count = int(numbers[0])
    native, translated, errors, rows = np.split(
        numbers[1:], np.cumsum([2 * count, 2 * count, count])
    )
    return {
        "native": native.reshape(count, 2),
        "translated": translated.reshape(count, 2),
        "errors": errors,
        "rows": rows,
    }


def directions(vectors: np.ndarray, mean: np.ndarray) -> np.ndarray:
    return (vectors - mean) / np.linalg.norm(vectors - mean, axis=1, keepdims=True)


def test_points_are_those_of_a_naive_pca_with_held_out_translations(client: TestClient) -> None:
    vectors = stock(client)
    own = vectors["second"].astype(np.float32).astype(float)
    found = read_points(client.get(f"/console/map/points?{PAIR}").content)
    unit = directions(own, own.mean(axis=0))
    axes = np.linalg.svd(unit)[2][:2]
    axes *= np.sign([axis[np.abs(axis).argmax()] for axis in axes])[:, None]
    np.testing.assert_allclose(found["native"], unit @ axes.T, atol=1e-4)
    np.testing.assert_array_equal(found["rows"], np.arange(60))

    translators = client.get("/translators").json()["translators"]
    held = hold_out(
        translators[0]["method"],
        torch.tensor(vectors["first"]).float(),
        torch.tensor(vectors["second"]).float(),
        translators[0]["options"],
    )
    assert held is not None
    translated = directions(held.translated.numpy(), own.mean(axis=0))
    np.testing.assert_allclose(found["translated"], translated @ axes.T, atol=1e-4)
    np.testing.assert_allclose(found["errors"], 1 - (unit * translated).sum(axis=1), atol=1e-4)


def test_the_page_asks_for_the_points_of_its_pair(client: TestClient) -> None:
    stock(client)
    page = client.get("/console/map").text
    assert (
        'data-points="/console/map/points?anchor_set=items&amp;source=first&amp;target=second"'
        in (page)
    )
    page = client.get("/console/map?anchor_set=items&source=second").text
    assert "second in the space of first" in page


def test_names_that_cannot_be_chosen_are_named_at_the_form(client: TestClient) -> None:
    stock(client)
    page = client.get("/console/map?anchor_set=none&source=first&target=first").text
    assert "No anchor set &#39;none&#39; has embeddings by two encoders." in page
    assert "Source and target are the same encoder." in page
    assert "first in the space of second" in page
    page = client.get("/console/map?anchor_set=items&source=<b>").text
    assert "has no embeddings by &#39;&lt;b&gt;&#39;." in page


def test_an_empty_project_teaches_the_first_calls(client: TestClient) -> None:
    page = client.get("/console/map").text
    assert "anchorage quickstart postgresql://" in page
    assert "<canvas" not in page


def test_the_summary_says_that_items_were_held_out(client: TestClient) -> None:
    stock(client)
    part = client.get(f"/console/map/summary?{PAIR}", headers=FRAGMENT).text
    assert "<html" not in part
    assert "Each item was translated by a fit that did not see it." in part
    page = client.get(f"/console/map/summary?{PAIR}").text  # without the script
    assert "<html" in page
    assert "Each item was translated by a fit that did not see it." in page


def test_the_summary_says_that_few_anchors_were_fitted(client: TestClient) -> None:
    stock(client, rows=8)
    part = client.get(f"/console/map/summary?{PAIR}", headers=FRAGMENT).text
    assert "The translator was fitted to these anchors" in part
    assert "did not see it" not in part


def test_of_many_anchors_a_sample_is_drawn(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock(client)
    monkeypatch.setattr(pair_map, "MAX_MAPPED", 25)
    rows = read_points(client.get(f"/console/map/points?{PAIR}").content)["rows"]
    assert len(rows) == len(set(rows.tolist())) == 25
    assert rows.max() > 30
    part = client.get(f"/console/map/summary?{PAIR}", headers=FRAGMENT).text
    assert "drawn from 60" in part


@pytest.mark.parametrize("path", ["points", "summary"])
def test_unknown_names_are_not_found(client: TestClient, path: str) -> None:
    stock(client)
    for query in (
        "anchor_set=none&source=first&target=second",
        "anchor_set=items&source=none&target=second",
    ):
        assert client.get(f"/console/map/{path}?{query}").status_code == 404
    same = client.get(f"/console/map/{path}?anchor_set=items&source=first&target=first")
    assert same.status_code == 422
    assert "Choose two different ones" in same.text


def test_an_item_has_no_text_where_the_set_keeps_no_inputs(client: TestClient) -> None:
    stock(client)
    assert client.get("/console/map/item?anchor_set=items&row=7").json() == {"text": None}
    outside = client.get("/console/map/item?anchor_set=items&row=60")
    assert outside.status_code == 422
    assert "from 0 to 59" in outside.text


def test_an_item_is_its_text_where_the_set_keeps_inputs(encoding: Encoding) -> None:
    answer = encoding.http.get("/console/map/item?anchor_set=texts&row=3")
    assert answer.json() == {"text": TEXTS[3]}


def test_the_pages_need_a_key(
    locked: TestClient, new_key: Callable[..., str], bearing: Callable[[str], dict[str, str]]
) -> None:
    locked.follow_redirects = False
    try:
        for path in ("", "/points", "/summary", "/item"):
            answer = locked.get(f"/console/map{path}?{PAIR}&row=0")
            assert answer.headers["location"].startswith("/console/sign-in")
    finally:
        locked.follow_redirects = True
    assert locked.get("/console/map", headers=bearing(new_key(locked, "read"))).status_code == 200
