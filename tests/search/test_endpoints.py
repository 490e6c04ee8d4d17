"""/stores/{name}/search."""

from __future__ import annotations

import numpy as np
import pytest

from app.db import resources, tables
from app.types import MigrationState
from tests.fixtures.shop import DOCUMENTS, EVERY_CASE, QUERIES, embed
from tests.helpers import alter


@pytest.fixture
def connected(shop):
    shop.connect()
    return shop


def test_a_cascade_over_all_rows_equals_rescore(connected) -> None:
    found = connected.search(k=20, candidates=200, exact=True)
    assert (found["mode"], found["side"], found["candidates"]) == ("cascade", "old", 200)
    old = embed(DOCUMENTS, "old").tolist()
    body = {
        "source": "old",
        "target": "new",
        "anchor_set": "items",
        "queries": embed(QUERIES, "new").tolist(),
        "candidates": [{"ids": list(range(200)), "vectors": old}] * len(QUERIES),
        "limit": 20,
    }
    rescored = connected.client.post("/rescore", json=body).json()["results"]
    for mine, theirs in zip(found["results"], rescored, strict=True):
        assert np.allclose(mine["scores"], theirs["scores"], atol=2e-3)
        assert len(set(mine["ids"]) & set(theirs["ids"])) >= 19
    assert found["translator"].startswith("tr_")
    assert found["bridge"].startswith("tr_")
    assert found["new_vectors"] == 0


def test_fuse_uses_the_old_queries(connected) -> None:
    old = embed(QUERIES, "old").tolist()
    found = connected.search(mode="fuse", old_queries=old, weight=0.0, k=5, exact=True)
    assert found["combined"] == {
        "scores": ["old", "translated"],
        "weight": 0.0,
        "weight_chosen_by": "request",
    }
    scores = embed(DOCUMENTS, "old") @ embed(QUERIES, "old").T
    for query, each in enumerate(found["results"]):
        expected = np.argsort(-scores[:, query], kind="stable")[:5].tolist()
        assert len(set(each["ids"]) & set(expected)) >= 4
    chosen = connected.search(old_queries=old)
    assert (chosen["mode"], chosen["combined"]["weight_chosen_by"]) == ("fuse", "default")
    assert connected.search(422, mode="fuse")["code"] == "missing-field"


def test_a_target_that_the_store_holds_needs_no_translation(connected) -> None:
    queries = embed(QUERIES, "old")
    found = connected.search(target="old", anchor_set=None, queries=queries.tolist(), exact=True)
    assert (found["mode"], found["bridge"], found["method"]) == ("translate", None, None)
    scores = embed(DOCUMENTS, "old") @ queries.T
    for query, each in enumerate(found["results"]):
        assert each["ids"][0] == int(scores[:, query].argmax())


WRONG = [
    ({"k": 10**30}, "invalid-request"),
    ({"candidates": 1_900}, "too-many-vectors"),
    ({"queries": [[float("1e39")] * 24]}, "value-out-of-range"),
    ({"inputs": ["x"]}, "encoder-needs-vectors"),
    ({"anchor_set": "none"}, "anchor-set-not-found"),
    ({"anchor_set": None}, "missing-field"),
    ({"mode": "translate"}, "wrong-state"),
    ({"mode": "fuse", "old_queries": [[0.5] * 32]}, "invalid-request"),
    ({"options": {"delta": 7}}, None),
    ({"filter": {"a": {"b": "x" * 70_000}}}, None),
    ({"filter": {"nonsense": 1}}, "invalid-filter"),
]


def test_wrong_searches_are_refused(connected) -> None:
    statuses = {"wrong-state": 409, "too-many-vectors": 413}
    statuses |= dict.fromkeys(["encoder-not-found", "anchor-set-not-found"], 404)
    wrong = []
    for changes, code in WRONG:
        body = {"target": "new", "anchor_set": "items", **changes}
        if "inputs" not in body:
            body.setdefault("queries", embed(QUERIES, "new").tolist())
        answer = connected.client.post("/stores/docs/search", json=body)
        found = (answer.status_code, answer.json().get("code"))
        if found != (statuses.get(code, 422), code or found[1]):
            wrong.append((changes, code, answer.text[:300]))
    assert wrong == []


@pytest.fixture
def moving(connected):
    """A running migration to `new`, whose new vectors this test writes itself."""
    services = connected.client.app.state.services
    with services.db.transaction() as session:
        row = resources.by_name(session, tables.StoreRow, "default", "docs")
        encoder = resources.by_name(session, tables.EncoderRow, "default", "new")
        moved = tables.MigrationRow(
            store_id=row.id,
            target_id=encoder.id,
            anchor_set_id=resources.by_name(session, tables.AnchorSetRow, "default", "items").id,
            state=MigrationState.running,
            plan={"method": "graded", "options": {}},
            maps="0" * 64,
        )
        session.add(moved)
    migration = services.stores.open(services.stores.location(row)).migration(
        moved.id[:8], encoder.dim
    )
    migration.prepare()

    return connected, migration, lambda **values: alter(services, moved, **values)


@EVERY_CASE
def test_on_the_way_and_after_a_cutover_new_vectors_are_used(moving) -> None:
    shop, migration, change = moving
    native = embed(DOCUMENTS, "new")
    scores = native @ embed(QUERIES, "new").T
    assert shop.search(anchor_set=None)["new_vectors"] == 0
    migration.write(list(range(0, 200, 2)), native[::2])
    found = shop.search(anchor_set=None, k=200, candidates=200, exact=True)
    assert (found["mode"], found["side"], found["new_vectors"]) == ("cascade", "old", 100)
    for query, each in enumerate(found["results"]):
        for row, score in zip(each["ids"], each["scores"], strict=True):
            if row % 2 == 0:
                assert score == pytest.approx(scores[row, query], abs=2e-3)
    assert shop.search(409, mode="translate")["code"] == "wrong-state"
    in_use = shop.client.delete("/stores/docs")
    assert (in_use.status_code, in_use.json()["code"]) == (409, "in-use")
    assert shop.client.delete("/anchor-sets/items").json()["code"] == "in-use"

    migration.write(list(range(200)), native)
    migration.build_index()
    migration.cutover(lambda ids, vectors: native[list(ids)])
    change(state=MigrationState.cut_over)
    found = shop.search(anchor_set=None, exact=True, k=1)
    assert (found["mode"], found["side"], found["bridge"]) == ("translate", "new", None)
    assert [each["ids"][0] for each in found["results"]] == scores.argmax(axis=0).tolist()
    assert shop.search(mode="cascade", k=5)["side"] == "old"
    assert shop.client.get("/stores/docs").status_code == 200

    change(position={"step": "finish"})  # the old vectors may be gone already
    old = {"target": "old", "queries": embed(QUERIES, "old").tolist()}
    for body in ({"mode": "cascade"}, {"mode": "bridge"}, old):
        problem = shop.search(409, **body)
        assert (problem["code"], "Call `finish` of it" in problem["detail"]) == (
            "wrong-state",
            True,
        )
    assert shop.search()["side"] == "new"
    migration.finish()
    for body in ({"mode": "cascade"}, old):
        assert shop.search(409, **body)["code"] == "wrong-state"
