"""Writes of clients during a reindexing of Qdrant: what the cutover and the rollback carry."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from qdrant_client import models

from app.stores.base import StoreLocation
from app.stores.qdrant import catch_up, client
from app.stores.registry import open_store
from tests.stores.qdrant.test_qdrant import (
    DIM,
    DOT,
    NEW_DIM,
    RNG,
    TAG,
    VECTORS,
    local,
    move,
    plain_points,
    translate,
    translate_back,
    visit,
)

CHANGED = RNG.normal(size=(12, DIM)).astype(np.float32)


def prepared(folder: Path, strategy: str):
    """A store whose reindexing is filled with 8 rows."""
    params = {"v": models.VectorParams(size=DIM, distance=DOT)}
    points = [
        models.PointStruct(id=each.id, vector={"v": each.vector}, payload=each.payload)
        for each in plain_points(8)
    ]
    location = local(folder, params, points)
    store = open_store(location)
    beside = store.beside(TAG, NEW_DIM, strategy)
    move(store, beside)
    return location, store, beside


def put(location: StoreLocation, number: int, vector: np.ndarray, name: str = "v", **payload):
    point = models.PointStruct(id=number, vector={name: vector.tolist()}, payload=payload)
    with visit(location) as client:
        client.upsert("items", [point])


def payloads(location: StoreLocation) -> dict[int, dict]:
    with visit(location) as client:
        return {point.id: point.payload for point in client.scroll("items", limit=50)[0]}


def new_of(store, number: int) -> np.ndarray:
    return store.fetch([number], "new").vectors[0]


def test_replaced_points_and_changed_payloads_are_carried_both_ways(tmp_path: Path) -> None:
    location, store, beside = prepared(tmp_path, "collection")
    put(location, 0, CHANGED[0], n=100)
    with visit(location) as client:
        client.set_payload("items", {"n": 101}, points=[1])
        client.delete("items", models.PointIdsList(points=[2]))
    checksum = store.checksum()
    beside.cutover(translate)
    assert store.checksum() == checksum
    assert {number: payload["n"] for number, payload in payloads(location).items()} == {
        **{number: number for number in range(3, 8)},
        0: 100,
        1: 101,
    }
    assert np.allclose(new_of(store, 0), translate(None, CHANGED[:1])[0], atol=1e-4)
    assert np.allclose(new_of(store, 1), translate(None, VECTORS[1:2])[0], atol=1e-4)

    later = translate(None, CHANGED[4:5])
    put(location, 4, later[0], n=104)
    checksum = store.checksum()
    beside.rollback(translate_back)
    assert store.checksum() == checksum
    back = store.fetch([3, 4])
    assert np.allclose(back.vectors[0], VECTORS[3], atol=1e-6)
    assert np.allclose(back.vectors[1], translate_back(None, later)[0], atol=1e-4)
    store.close()


def test_writes_between_the_comparison_and_the_switch_are_carried(tmp_path: Path) -> None:
    location, store, beside = prepared(tmp_path, "collection")
    put(location, 7, CHANGED[7], n=107)
    calls = []

    def writes_meanwhile(ids, vectors):
        calls.append(list(ids))
        if len(calls) == 1:  # the comparison has read all points
            put(location, 50, CHANGED[5], n=150)
            put(location, 0, CHANGED[0], n=0)  # only the vector differs
            with visit(location) as client:
                client.delete("items", models.PointIdsList(points=[1]))
        return translate(ids, vectors)

    beside.cutover(writes_meanwhile)
    assert calls == [[7], [0, 50]]
    found = payloads(location)
    assert sorted(found) == [0, *range(2, 8), 50]
    assert (found[50], found[7]) == ({"n": 150}, {"n": 107})
    for number, row in ((50, 5), (0, 0), (7, 7)):
        expected = translate(None, CHANGED[[row]])[0]
        assert np.allclose(new_of(store, number), expected, atol=1e-4)
    store.close()


def test_two_cutovers_at_once_delete_no_new_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catch_up, "POINTS_PER_COPY", 1)
    monkeypatch.setattr(client, "POINTS_PER_READ", 2)
    location, store, beside = prepared(tmp_path, "collection")
    put(location, 0, CHANGED[0], n=100)
    others = []

    def another_cuts_over(ids, vectors):
        if not others:
            others.append(ids)
            store.beside(TAG, NEW_DIM, "collection").cutover(translate)
            put(location, 60, np.ones(NEW_DIM, np.float32), n=160)
        return translate(ids, vectors)

    beside.cutover(another_cuts_over)
    assert payloads(location)[60] == {"n": 160}
    assert np.array_equal(new_of(store, 60), np.ones(NEW_DIM))
    store.close()


def test_a_named_vector_that_lacks_a_point_at_the_switch_gets_it_after(tmp_path: Path) -> None:
    location, store, beside = prepared(tmp_path, "named-vector")
    put(location, 9, CHANGED[1])

    def replaces_meanwhile(ids, vectors):
        if list(ids) == [9]:
            put(location, 3, CHANGED[3])
        return translate(ids, vectors)

    beside.cutover(replaces_meanwhile)
    assert list(store.scroll(None, 50, "new").ids) == [*range(8), 9]
    assert np.allclose(new_of(store, 3), translate(None, CHANGED[3:4])[0], atol=1e-4)
    put(location, 4, CHANGED[4])  # of a client that still uses the old name
    beside.cutover(translate)
    assert np.allclose(new_of(store, 4), translate(None, CHANGED[4:5])[0], atol=1e-4)
    store.close()
