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
from tests.stores.cases.base import Rows
from tests.stores.cases.qdrant import LocalQdrantCase
from tests.stores.moving import NEW_DIM, TAG, fill_migration, rows, translate

CASE = LocalQdrantCase()
CHANGED = rows(CASE, 8, seed=1).vectors
#: a vector that a client of the new model writes
OF_CLIENT = np.full(NEW_DIM, NEW_DIM**-0.5, np.float32)


@pytest.fixture
def filled(tmp_path: Path):
    """A store whose migration is filled with 8 rows."""
    location = CASE.fill(tmp_path, rows(CASE, 8))
    store = open_store(location)
    fill_migration(store, migration := store.migration(TAG, NEW_DIM))
    yield location, store, migration
    store.close()


def put(location: StoreLocation, number: int, vector: np.ndarray, payload: int) -> None:
    CASE.insert(location, Rows([number], vector[None], [{"number": payload}]))


def numbers(location: StoreLocation) -> dict:
    return {id: payload["number"] for id, (_, payload) in CASE.read(location).items()}


def new_of(store, number: int) -> np.ndarray:
    return store.fetch([number], "new").vectors[0]


def test_payloads_and_points_without_the_vector_are_carried(filled) -> None:
    location, store, migration = filled
    with CASE.visit(location) as client:
        client.set_payload("items", {"number": 101}, points=[1])
        client.upsert("items", [models.PointStruct(id=9, vector={}, payload={"number": 9})])
        client.delete_vectors("items", ["text"], points=[2])
    migration.cutover(translate)
    with CASE.visit(location) as client:
        found = {point.id: point.payload["number"] for point in client.scroll("items", limit=50)[0]}
    assert found == {each: each for each in (*range(8), 9)} | {1: 101}
    expected = translate(None, rows(CASE, 8).vectors[1:2])[0]
    assert np.allclose(new_of(store, 1), expected, atol=1e-4)
    assert list(store.scroll(None, 50, "new").ids) == [0, 1, 3, 4, 5, 6, 7]


def test_writes_between_the_comparison_and_the_switch_are_carried(filled) -> None:
    location, store, migration = filled
    put(location, 7, CHANGED[7], 107)
    swap = store.swap

    def swap_between_writes(sides, visible):
        put(location, 50, CHANGED[5], 150)
        put(location, 0, CHANGED[0], 100)
        put(location, 1, CHANGED[1], 101)
        pause = swap(sides, visible)
        put(location, 1, OF_CLIENT, 111)
        return pause

    store.swap = swap_between_writes
    migration.cutover(translate)
    found = numbers(location)
    assert found == {each: each for each in range(8)} | {50: 150, 7: 107, 0: 100, 1: 111}
    for number, row in ((50, 5), (0, 0), (7, 7)):
        expected = translate(None, CHANGED[[row]])[0]
        assert np.allclose(new_of(store, number), expected, atol=1e-4)
    assert np.allclose(new_of(store, 1), OF_CLIENT)


def test_two_cutovers_at_once_delete_no_new_point(filled, monkeypatch) -> None:
    monkeypatch.setattr(paired_store, "ROWS_A_PAGE", 2)
    location, store, migration = filled
    put(location, 0, CHANGED[0], 100)
    others = []

    def another_cuts_over(ids, vectors):
        if not others:
            others.append(ids)
            store.migration(TAG, NEW_DIM).cutover(translate)
            put(location, 60, OF_CLIENT, 160)
        return translate(ids, vectors)

    with pytest.raises(StoreChanged):
        migration.cutover(another_cuts_over)
    assert numbers(location)[60] == 160
    assert np.allclose(new_of(store, 60), OF_CLIENT)


def test_a_row_that_changes_while_its_page_is_translated_is_found(filled) -> None:
    """What is copied is what was translated, so that the change differs from the copy."""
    location, store, _ = filled
    store.migration(TAG, NEW_DIM).abandon()
    migration = store.migration(TAG, NEW_DIM)
    migration.prepare()
    page = store.scroll(None, 50)
    put(location, 3, CHANGED[3], 103)
    migration.write(page.ids, translate(page.ids, page.vectors))
    migration.build_index()
    assert list(migration.changes(10).ids) == [3]
