"""Live comparisons of two modes: `compare` of a search, the clicks, and the result."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
import redis
from starlette.testclient import TestClient

from app.main import create_app
from app.settings import Settings
from app.storage.open_comparisons import OPEN_S
from tests.api.resources.stores.conftest import QUERIES, Shop, documents, embed
from tests.stores.cases.qdrant import LocalQdrantCase
from tests.waiting import until

PREFIX = f"test-compared-{uuid4().hex}"

NEW, OLD = embed(QUERIES, "new"), embed(QUERIES, "old")

#: the other mode is so far from the first that no query has the same answer by both
FAR = {"queries": NEW.tolist(), "old_queries": (-OLD).tolist(), "k": 6}


@pytest.fixture(scope="module")
def running(
    filled: Path, tmp_path_factory: pytest.TempPathFactory, redis_url: str
) -> Iterator[Shop]:
    """One service with Redis for all tests: starting one takes longer than most of them."""
    folder, case = tmp_path_factory.mktemp("compared"), LocalQdrantCase()
    shutil.copytree(filled, folder / "data")
    location = case.fill(folder, documents())
    settings = Settings(
        data_dir=folder / "data",
        stores={"main": location.url},
        redis_url=redis_url,
        redis_prefix=PREFIX,
    )
    with TestClient(
        create_app(settings), base_url="http://127.0.0.1", raise_server_exceptions=False
    ) as client:
        yield Shop(client, location, case)
    case.remove(location)
    with redis.Redis.from_url(redis_url) as found:
        for key in found.scan_iter(f"*{PREFIX}*"):
            found.delete(key)


@pytest.fixture
def shop(running: Shop) -> Iterator[Shop]:
    """The service with a connected store, of which nothing is counted."""
    running.connect()
    yield running
    for store in ("docs", "other"):
        running.client.delete(f"/stores/{store}")


def comparisons(shop: Shop) -> list[dict]:
    answer = shop.client.get("/stores/docs/comparison")
    assert answer.status_code == 200, answer.text
    return answer.json()["comparisons"]


def counted(shop: Shop, name: str, at_least: int = 1) -> dict:
    """The only comparison, once `name` of it is as large."""
    until(lambda: any(each[name] >= at_least for each in comparisons(shop)))
    (found,) = comparisons(shop)
    return found


def feedback(shop: Shop, comparison: str, ids: list, store: str = "docs") -> tuple[int, dict]:
    body = {"comparison": comparison, "ids": ids}
    answer = shop.client.post(f"/stores/{store}/feedback", json=body)
    return answer.status_code, answer.json()


def test_a_shadow_changes_no_answer_and_counts_how_both_modes_differ(shop: Shop) -> None:
    plain = shop.search(k=5)
    for _ in range(2):
        assert shop.search(k=5, compare="shadow", old_queries=OLD.tolist()) == plain
    found = counted(shop, "shadowed", 2 * len(QUERIES))
    own = shop.search(target="old", anchor_set=None, queries=OLD.tolist(), k=5)["results"]
    pairs = [(a["ids"], b["ids"]) for a, b in zip(plain["results"], own, strict=True)]
    overlaps = [len(set(ours) & set(theirs)) / 5 for ours, theirs in pairs]
    changes = [
        abs(ours.index(id) - theirs.index(id))
        for ours, theirs in pairs
        for id in ours
        if id in theirs
    ]
    assert found["overlap"] == pytest.approx(np.mean(overlaps))
    assert found["rank_change"] == pytest.approx(np.mean(changes))
    assert (found["target"], found["mode"]) == ("new", "cascade")
    assert (found["dropped"], found["failed"], found["interleaved"]) == (0, 0, 0)
    for name in ("latency_ms", "old_latency_ms"):
        assert 1 <= found[name]["p50"] <= found[name]["p99"]
    assert shop.client.delete("/stores/docs/comparison").status_code == 204
    assert comparisons(shop) == []


def test_shadows_that_find_a_full_queue_or_fail_are_counted(shop: Shop) -> None:
    shadows, portal = shop.client.app.state.services.shadows, shop.client.portal
    first = {
        "queries": NEW[:1].tolist(),
        "old_queries": OLD[:1].tolist(),
        "compare": "shadow",
    }
    released = portal.call(asyncio.Event)

    async def fill() -> None:
        for _ in range(2):  # the first of them leaves the queue, because it runs
            while shadows.offer(released.wait, "default"):
                pass
            await asyncio.sleep(0)

    portal.call(fill)
    shop.search(**first)
    portal.call(released.set)
    shop.search(**first)
    found = counted(shop, "shadowed")
    assert (found["dropped"], found["failed"], found["shadowed"]) == (1, 0, 1)
    shop.client.delete("/stores/docs/comparison")
    shop.search(**{**first, "old_queries": [[0.5] * 31]})
    found = counted(shop, "failed")
    assert (found["shadowed"], found["overlap"], found["latency_ms"]["p50"]) == (0, None, None)


def test_a_share_of_the_queries_is_chosen_by_their_content(shop: Shop) -> None:
    share = {"compare": "interleave", "compare_share": 0.5, **FAR}
    chosen = [
        [each.get("comparison") is not None for each in shop.search(**share)["results"]]
        for _ in range(2)
    ]
    assert chosen[0] == chosen[1]
    rows = [5, 4, 3, 2, 1, 0]
    back = {name: np.array(share[name])[rows].tolist() for name in ("queries", "old_queries")}
    again = [each.get("comparison") is not None for each in shop.search(**share | back)["results"]]
    assert again == chosen[0][::-1]
    assert 0 < sum(chosen[0]) < len(QUERIES)


def test_an_interleaved_answer_has_hits_of_both_modes_and_clicks_decide_it_once(
    shop: Shop, redis_url: str
) -> None:
    ours = shop.search(queries=NEW.tolist(), k=6)["results"]
    own = {"target": "old", "anchor_set": None, "queries": FAR["old_queries"]}
    theirs = shop.search(**own, k=6)["results"]
    found = shop.search(**FAR, compare="interleave", payload=True)
    assert found["warnings"] == shop.search(queries=NEW.tolist())["warnings"]
    for mine, other, mixed in zip(ours, theirs, found["results"], strict=True):
        assert set(mixed["ids"][:2]) == {mine["ids"][0], other["ids"][0]}
        assert len(set(mixed["ids"]) & set(mine["ids"])) == 3
        assert mixed["scores"] == [1 / rank for rank in range(1, 7)]
        assert [each["text"] for each in mixed["payloads"]] == [
            f"document {id}" for id in mixed["ids"]
        ]
    mixed, other = found["results"][0], found["results"][1]
    by_ours = [id for id in mixed["ids"] if id in ours[0]["ids"]]
    by_theirs = [id for id in mixed["ids"] if id in theirs[0]["ids"]]
    name = mixed["comparison"]
    with redis.Redis.from_url(redis_url) as client:
        key = f"{PREFIX}:comparison:{name}"
        assert OPEN_S - 60 < client.ttl(key) <= OPEN_S
    assert feedback(shop, name, [by_ours[0], by_theirs[0]]) == (200, {"counted": False})
    assert feedback(shop, name, [by_ours[0]]) == (200, {"counted": False})  # a repeated click
    assert feedback(shop, name, [str(by_ours[1])]) == (200, {"counted": True})  # as a page sends it
    assert feedback(shop, name, by_theirs) == (200, {"counted": False})
    theirs_too = [id for id in other["ids"] if id in theirs[1]["ids"]]
    assert feedback(shop, other["comparison"], theirs_too[:1]) == (200, {"counted": True})
    result = counted(shop, "interleaved", 6)
    assert (result["clicked"], result["same"], result["shadowed"]) == (2, 0, 0)
    preference = result["preference"]
    assert (preference["wins"], preference["losses"], preference["verdict"]) == (1, 1, "undecided")
    assert preference["low"] < 0.5 < preference["high"]
    assert preference["needed"] > 100
    assert result["summary"].startswith("50% of 2 queries")


def test_clicks_that_belong_to_no_open_answer_are_refused(shop: Shop) -> None:
    found = shop.search(**FAR, compare="interleave")["results"][0]
    shop.connect(name="other")
    status, problem = feedback(shop, found["comparison"], [*found["ids"][:1], 10**6])
    assert (status, problem["code"], problem["field"]) == (422, "invalid-request", "ids")
    assert problem["rows"] == [1]
    for name, store, code in (
        ("0" * 32, "docs", "comparison-not-found"),
        (found["comparison"], "other", "comparison-not-found"),
        (found["comparison"], "none", "store-not-found"),
    ):
        status, problem = feedback(shop, name, found["ids"][:1], store)
        assert (status, problem["code"]) == (404, code)
    for body in ({}, {"comparison": "x" * 101, "ids": [1]}, {"comparison": "x", "ids": []}):
        assert shop.client.post("/stores/docs/feedback", json=body).status_code == 422
    assert shop.client.delete("/stores/docs/comparison").status_code == 204
    status, problem = feedback(shop, found["comparison"], found["ids"][:1])
    assert (status, problem["code"]) == (404, "comparison-not-found")


def test_queries_with_the_same_answer_by_both_are_not_interleaved(shop: Shop) -> None:
    found = shop.search(old_queries=OLD.tolist(), compare="interleave", k=1)
    same = sum("comparison" not in each for each in found["results"])
    result = counted(shop, "same", same) if same else counted(shop, "interleaved")
    assert (result["same"], result["interleaved"]) == (same, len(QUERIES) - same)
    assert same  # both encoders find most documents


WRONG = [
    ({"compare": "both"}, "compare"),
    ({"compare": "shadow", "compare_share": 1.5}, "compare_share"),
    ({"compare_share": 0.5}, "compare_share"),
    ({"compare": "shadow"}, "old_queries"),
    ({"compare": "interleave"}, "old_queries"),
    ({"compare": "interleave", "old_queries": OLD[:2].tolist()}, "old_queries"),
    ({"compare": "interleave", "old_queries": [[0.5] * 31] * 6}, "queries"),
    ({"compare": "interleave", "old_queries": 5}, "old_queries"),
    ({"compare": "interleave", "old_queries": OLD.tolist(), "queries": 5}, "queries"),
    ({"compare": "interleave", "old_queries": OLD.tolist(), "queries": None}, "queries"),
    ({"compare": "interleave", "old_queries": OLD[:1].tolist(), "queries": NEW[:1].tolist(),
      "inputs": ["a", "b"]}, "queries"),
    ({"compare": "shadow", "target": "old", "queries": OLD.tolist(), "anchor_set": None,
      "old_queries": OLD.tolist()}, "compare"),
]  # fmt: skip


def test_comparisons_that_cannot_be_made_are_refused(shop: Shop) -> None:
    wrong = []
    for changes, field in WRONG:
        body = {"target": "new", "anchor_set": "items", "queries": NEW.tolist(), **changes}
        answer = shop.client.post("/stores/docs/search", json=body)
        if (answer.status_code, answer.json().get("field")) != (422, field):
            wrong.append((changes, field, answer.text[:300]))
    assert wrong == []


def test_without_redis_an_answer_is_not_interleaved_and_says_so(
    case, filled: Path, tmp_path: Path
) -> None:
    shutil.copytree(filled, tmp_path / "data")
    location = case.fill(tmp_path, documents())
    for redis_url in (None, "redis://127.0.0.1:1/0"):
        settings = Settings(
            data_dir=tmp_path / "data", stores={"main": location.url}, redis_url=redis_url
        )
        with TestClient(create_app(settings), base_url="http://127.0.0.1") as client:
            shop = Shop(client, location, case)
            shop.connect()
            found = shop.search(**FAR, compare="interleave")
            assert [each["code"] for each in found["warnings"]][-1] == "comparison-skipped"
            plain = shop.search(queries=FAR["queries"], k=6)
            assert found["results"] == plain["results"]
            status, problem = feedback(shop, "0" * 32, [1])
            expected = (404, "comparison-not-found") if redis_url is None else (503, "unavailable")
            assert (status, problem["code"]) == expected
            client.delete("/stores/docs")
    case.remove(location)


def test_a_comparison_is_deleted_with_its_store(shop: Shop) -> None:
    shop.search(**FAR, compare="interleave")
    counted(shop, "interleaved")
    assert shop.client.delete("/stores/docs").status_code == 204
    assert shop.client.get("/stores/docs/comparison").json()["code"] == "store-not-found"
    shop.connect()
    assert comparisons(shop) == []
