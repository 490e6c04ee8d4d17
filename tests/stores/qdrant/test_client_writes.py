"""Writes of clients during a migration of Qdrant: what the cutover and the rollback carry."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from qdrant_client import models

from app.errors import StoreChanged
from app.stores import paired_store
from app.stores.port import StoreLocation
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
    visit,
)

CHANGED = RNG.normal(size=(12, DIM)).astype(np.float32)


@pytest.fixture
def filled(tmp_path: Path):
    """A store whose migration is filled with 8 rows."""
    params = {"v": models.VectorParams(size=DIM, distance=DOT)}
    points = [
        models.PointStruct(id=each.id, vector={"v": each.vector}, payload=each.payload)
        for each in plain_points(8)
    ]
    location = local(tmp_path, params, points)
    store = open_store(location)
    migration = store.migration(TAG, NEW_DIM)
    move(store, migration)
    yield location, store, migration
    store.close()


def put(location: StoreLocation, number: int, vector: np.ndarray, **payload):
    point = models.PointStruct(id=number, vector={"v": vector.tolist()}, payload=payload)
    with visit(location) as client:
        client.upsert("items", [point])


def payloads(location: StoreLocation) -> dict[int, dict]:
    with visit(location) as client:
        return {point.id: point.payload for point in client.scroll("items", limit=50)[0]}


def new_of(store, number: int) -> np.ndarray:
    return store.fetch([number], "new").vectors[0]


def test_payloads_and_points_without_the_vector_are_carried(filled) -> None:
    location, store, migration = filled
    with visit(location) as client:
        client.set_payload("items", {"n": 101}, points=[1])
        client.upsert("items", [models.PointStruct(id=9, vector={}, payload={"n": 9})])
        client.delete_vectors("items", ["v"], points=[2])
    checksum = store.checksum()
    migration.cutover(translate)
    assert store.checksum() == checksum
    assert {number: payload["n"] for number, payload in payloads(location).items()} == {
        **{number: number for number in (0, *range(2, 8), 9)},
        1: 101,
    }
    assert np.allclose(new_of(store, 1), translate(None, VECTORS[1:2])[0], atol=1e-4)
    assert list(store.scroll(None, 50, "new").ids) == [0, 1, 3, 4, 5, 6, 7]


def test_writes_between_the_comparison_and_the_switch_are_carried(filled) -> None:
    location, store, migration = filled
    put(location, 7, CHANGED[7], n=107)
    swap = store.swap

    def swap_between_writes(sides, visible):
        put(location, 50, CHANGED[5], n=150)
        put(location, 0, CHANGED[0], n=100)
        put(location, 1, CHANGED[1], n=101)
        pause = swap(sides, visible)
        put(location, 1, np.ones(NEW_DIM, np.float32), n=111)
        return pause

    store.swap = swap_between_writes
    migration.cutover(translate)
    found = payloads(location)
    assert sorted(found) == [*range(8), 50]
    assert (found[50], found[7], found[1]) == ({"n": 150}, {"n": 107}, {"n": 111})
    for number, row in ((50, 5), (0, 0), (7, 7)):
        expected = translate(None, CHANGED[[row]])[0]
        assert np.allclose(new_of(store, number), expected, atol=1e-4)
    assert np.array_equal(new_of(store, 1), np.ones(NEW_DIM))


def test_two_cutovers_at_once_delete_no_new_point(filled, monkeypatch) -> None:
    monkeypatch.setattr(paired_store, "ROWS_A_PAGE", 2)
    location, store, migration = filled
    put(location, 0, CHANGED[0], n=100)
    others = []

    def another_cuts_over(ids, vectors):
        if not others:
            others.append(ids)
            store.migration(TAG, NEW_DIM).cutover(translate)
            put(location, 60, np.ones(NEW_DIM, np.float32), n=160)
        return translate(ids, vectors)

    with pytest.raises(StoreChanged):
        migration.cutover(another_cuts_over)
    assert payloads(location)[60] == {"n": 160}
    assert np.array_equal(new_of(store, 60), np.ones(NEW_DIM))


def test_a_row_that_changes_while_its_page_is_translated_is_found(filled) -> None:
    """What is copied is what was translated, so that the change differs from the copy."""
    location, store, _ = filled
    store.migration(TAG, NEW_DIM).abandon()
    migration = store.migration(TAG, NEW_DIM)
    migration.prepare()
    page = store.scroll(None, 50)
    put(location, 3, CHANGED[3], n=103)
    migration.write(page.ids, translate(page.ids, page.vectors))
    migration.build_index()
    assert list(migration.changes(10).ids) == [3]
