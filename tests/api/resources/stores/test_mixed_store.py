"""A store of LanceDB that mixes two encoders is repaired in place, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from app.stores.registry import open_store
from tests.api.resources.stores.test_native_search import Shop, make_shop
from tests.waiting import until

THINGS = ["card", "cash", "rate", "transfer", "refund", "PIN", "loan", "visa", "cheque", "account"]
WHERE = ["abroad", "at home", "in a shop", "on the phone", "at night"]
VERBS = ["How do I get a", "I lost my", "What is the fee of a", "Please cancel the", "Who pays my"]
TEXTS = [f"{verb} {thing} {where}" for verb in VERBS for thing in THINGS for where in WHERE]

FOREIGN = np.arange(len(TEXTS)) % 4 == 0
STRANGE = 2  # a row of no encoder


def foreign(vectors: np.ndarray) -> np.ndarray:
    """The vectors of another encoder: turned, bent and moved."""
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(vectors.shape[1],) * 2))[0]
    found = np.tanh(4 * vectors @ turn) + 0.3
    return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True), np.float32)


def mix(vectors: np.ndarray) -> np.ndarray:
    mixed = np.where(FOREIGN[:, None], foreign(vectors), vectors)
    mixed[STRANGE] = np.eye(vectors.shape[1], dtype=np.float32)[0]
    return mixed


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = make_shop(tmp_path, list(TEXTS), change=mix)
    dim = made.client.get("/stores/docs").json()["dim"]
    made.post("/encoders", 201, name="foreign", kind="external", dim=dim)
    old = made.embed(TEXTS[::3], "old")
    embeddings = {"old": old.tolist(), "foreign": foreign(old).tolist()}
    made.post("/anchor-sets", 201, name="pairs", embeddings=embeddings)
    yield made
    made.client.__exit__(None, None, None)


def work(shop: Shop, id_: str, action: str) -> None:
    job = shop.wait(shop.post(f"/migrations/{id_}/{action}", 202)["id"])
    assert job["state"] == "succeeded", job


def test_a_mixed_store_is_repaired(shop: Shop) -> None:
    check = shop.client.get("/stores/docs").json()["space"]
    assert check["verdict"] == "mixed"
    body = {"store": "docs", "target": "old", "anchor_set": "pairs"}
    refused = shop.post("/migrations", 422, **body)
    assert (refused["code"], refused["field"]) == ("invalid-request", "target")
    plan = shop.post("/migrations", 201, **body, sources=[{"encoder": "foreign"}])
    assert plan["plan"]["undecided"]["embed"] is True
    assert [each["encoder"] for each in plan["plan"]["sources"]] == ["foreign", "old"]
    work(shop, plan["id"], "run")
    work(shop, plan["id"], "verify")
    store = open_store(shop.location)
    old = shop.embed(TEXTS, "old")
    ids = list(store.sample(len(TEXTS)).ids)
    before, after = (store.fetch(ids, side).vectors for side in ("old", "new"))
    place = {text: row for row, text in enumerate(TEXTS)}
    rows = np.array([place[str(text)] for text in store.texts(ids)])
    cosines = (after * old[rows]).sum(1) / np.linalg.norm(after, axis=1)
    is_foreign = FOREIGN[rows]
    own = ~is_foreign & (rows != STRANGE)
    assert cosines[own].min() > 0.9999
    assert (after[own] == before[own]).all(axis=1).mean() > 0.9  # the others were undecided
    assert cosines[rows == STRANGE] > 0.999  # embedded by `old` itself
    assert cosines[is_foreign].mean() > 0.9
    shop.post(f"/migrations/{plan['id']}/cutover")
    [found] = shop.post("/stores/docs/search", target="old", inputs=[TEXTS[STRANGE]], k=1)[
        "results"
    ]
    assert store.texts(found["ids"]) == [TEXTS[STRANGE]]
    shop.post(f"/migrations/{plan['id']}/finish")
    until(lambda: shop.client.get("/stores/docs").json()["space"]["verdict"] == "matches")


def test_anchors_from_a_mixed_store_leave_foreign_rows_out(shop: Shop) -> None:
    made = shop.finish("/anchor-sets", name="own", store="docs", encoders=["new"], size=100)
    assert made["result"]["foreign"] == pytest.approx(126 / 4, abs=8)
    assert made["result"]["size"] + made["result"]["foreign"] == 126
    assert shop.client.get("/anchor-sets/own").json()["size"] == made["result"]["size"]
