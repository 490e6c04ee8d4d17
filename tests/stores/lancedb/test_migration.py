"""What a migration in LanceDB has to withstand: kinds of vectors and indexes, writers, crashes."""

from __future__ import annotations

import threading
from pathlib import Path

import lancedb
import numpy as np
import pyarrow as pa
import pytest
from lancedb.index import BTree, HnswSq, IvfPq, IvfSq

from app.stores.base import StoreLocation
from app.stores.lancedb import LancedbStore
from app.stores.lancedb.columns import nearest_divisor
from tests.stores.cases.base import Rows
from tests.stores.cases.lancedb import LancedbCase, as_table, open_table
from tests.stores.moving import (
    NEW_DIM,
    TAG,
    drain,
    every,
    fill_migration,
    rows,
    run_until_killed,
    same,
    translate,
    translate_back,
)

CASE = LancedbCase()


@pytest.fixture
def filled(tmp_path: Path):
    location = CASE.fill(tmp_path, rows(CASE, 50))
    store = LancedbStore(location)
    yield location, store
    store.close()


@pytest.mark.parametrize("kind", [pa.float16(), pa.float64()], ids=str)
def test_half_and_double_vectors_keep_their_type(tmp_path, kind):
    lancedb.connect(str(tmp_path)).create_table("items", as_table(rows(CASE, 30), kind))
    location = StoreLocation("lancedb", str(tmp_path), "items", options={"distance": "cosine"})
    store = LancedbStore(location)
    assert store.facts().dtype == {pa.float16(): "float16", pa.float64(): "float64"}[kind]
    before = open_table(location).to_arrow()
    migration = store.migration(TAG, NEW_DIM)
    fill_migration(store, migration)
    assert len(migration.changes(10)) == 0
    migration.cutover(translate)
    table = open_table(location)
    assert table.schema.field("vector").type == pa.list_(kind, NEW_DIM)
    assert len(migration.changes(10)) == 0
    migration.rollback(translate_back)
    migration.abandon()
    assert open_table(location).to_arrow().equals(before)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (IvfPq(distance_type="dot", num_partitions=2, num_sub_vectors=3), "IvfPq"),
        (IvfSq(distance_type="cosine", num_partitions=2), "IvfSq"),
        (HnswSq(distance_type="cosine", num_partitions=1), "IvfHnswSq"),
    ],
    ids=["pq", "sq", "hnsw"],
)
def test_the_new_index_is_like_the_old_one_and_other_indexes_stay_whole(tmp_path, config, name):
    many = rows(CASE, 400)
    table = lancedb.connect(str(tmp_path)).create_table("items", as_table(many))
    table.create_index("vector", config=config)
    table.create_index("number", config=BTree())
    location = StoreLocation("lancedb", str(tmp_path), "items")
    store = LancedbStore(location)
    metric = store.facts().metric
    migration = store.migration(TAG, NEW_DIM)
    fill_migration(store, migration, 100)
    found = {each.columns[0]: each for each in open_table(location).list_indices()}
    new = found.pop(f"vector_anchorage_{TAG}")
    assert new.index_type.lower().removeprefix("ivf") == name.lower().removeprefix("ivf")
    assert (new.num_indexed_rows, new.num_unindexed_rows) == (400, 0)
    assert sorted(found) == ["number", "vector"]
    for each in found.values():
        assert (each.num_indexed_rows, each.num_unindexed_rows) == (400, 0)
    migration.cutover(translate)
    migration.finish()
    assert store.facts().metric == metric
    indexes = {each.columns[0]: each for each in open_table(location).list_indices()}
    assert sorted(indexes) == ["number", "vector"]
    assert indexes["vector"].num_unindexed_rows == 0
    assert not any(TAG in each.name for each in indexes.values())
    assert open_table(location).schema.names == as_table(many).schema.names
    assert open_table(location).tags.list() == {}


def test_product_quantisation_keeps_the_size_of_its_parts():
    assert nearest_divisor(768, 48.0) == 48
    assert nearest_divisor(1000, 62.5) == 50
    assert nearest_divisor(7, 3.0) in (1, 7)


def test_rows_without_a_vector_are_counted_by_a_migration_and_not_by_the_facts(tmp_path):
    some = as_table(rows(CASE, 3))
    vectors = pa.array([*some["vector"].to_pylist()[:2], None], some.schema.field("vector").type)
    table = some.set_column(some.schema.get_field_index("vector"), "vector", vectors)
    lancedb.connect(str(tmp_path)).create_table("items", table, on_bad_vectors="null")
    store = LancedbStore(StoreLocation("lancedb", str(tmp_path), "items"))
    migration = store.migration(TAG, NEW_DIM)
    fill_migration(store, migration)
    assert store.facts().rows == 3
    assert migration.count_old() == migration.count() == 2


def test_writes_of_clients_that_do_not_know_the_new_columns(filled):
    location, store = filled
    migration = store.migration(TAG, NEW_DIM)
    fill_migration(store, migration)
    table = open_table(location)
    table.add(as_table(rows(CASE, 2, 60)))
    table.update(where="id = 7", values={"vector": [1.0, 0, 0, 0, 0, 0]})
    table.update(where="id = 8", values={"number": 8})
    table.optimize()
    assert sorted(migration.changes(10).ids) == [7, 60, 61]
    drain(migration)
    assert len(migration.changes(10)) == 0
    assert migration.count() == 52
    migration.cutover(translate)
    table = open_table(location)
    table.add(as_table(Rows([70], np.ones((1, NEW_DIM), np.float32), rows(CASE, 1, 70).payloads)))
    assert list(migration.changes(10).ids) == [70]


def test_a_sweep_sees_the_version_that_prepare_tagged(filled):
    location, store = filled
    migration = store.migration(TAG, NEW_DIM)
    migration.prepare()
    page = store.scroll(None, 20)
    CASE.delete(location, range(10))
    CASE.insert(location, rows(CASE, 5, 50))
    table = open_table(location)
    table.optimize(cleanup_older_than=None)
    seen = list(page.ids)
    while page.cursor is not None:
        page = store.scroll(page.cursor, 20)
        seen += page.ids
    assert sorted(seen) == list(range(50))


def test_clients_that_write_all_the_time_lose_nothing(filled):
    """A client inserts and updates rows while the new vectors are written, merged and switched."""
    location, store = filled
    migration = store.migration(TAG, NEW_DIM)
    migration.prepare()
    stop = threading.Event()
    written: dict[int, np.ndarray] = dict(enumerate(rows(CASE, 50).vectors))

    def write() -> None:
        place = 100
        while not stop.is_set() and place < 160:
            one = rows(CASE, 1, place)
            CASE.insert(location, one)
            written[place] = one.vectors[0]
            old = rows(CASE, 1, place % 50, seed=place)
            CASE.insert(location, old)
            written[place % 50] = old.vectors[0]
            place += 1

    writer = threading.Thread(target=write)
    writer.start()
    fill_migration(store, migration, 10)
    drain(migration)
    stop.set()
    writer.join()
    migration.cutover(translate)
    found = CASE.read(location)
    assert set(found) == set(written)
    for id, vector in written.items():
        assert np.allclose(found[id][0], translate(None, vector[None])[0], atol=1e-5)
    assert store.checksum().rows == len(written)


def test_a_write_between_the_last_look_and_the_rename_arrives(filled):
    """A client's commit after the comparison is in the old column; it is found after the rename."""
    location, store = filled
    migration = store.migration(TAG, NEW_DIM)
    fill_migration(store, migration)
    late = rows(CASE, 1, 80)
    changed = Rows([3], -rows(CASE, 1, 3).vectors, rows(CASE, 1, 3).payloads)
    mine = np.ones((1, NEW_DIM), np.float32)
    swap = store.swap

    def swap_between_writes(sides, visible):
        CASE.insert(location, late)
        CASE.insert(location, changed)
        pause = swap(sides, visible)
        CASE.insert(location, Rows([5], mine, rows(CASE, 1, 5).payloads))
        return pause

    store.swap = swap_between_writes
    migration.cutover(translate)
    found = CASE.read(location)
    assert np.allclose(found[80][0], translate(None, late.vectors)[0], atol=1e-5)
    assert np.allclose(found[3][0], translate(None, changed.vectors)[0], atol=1e-5)
    assert np.array_equal(found[5][0], mine[0]), "a client's new vector stays"
    assert list(migration.changes(10).ids) == [5]


@pytest.mark.parametrize("pages", [1, 7, 39, 40])
def test_a_run_killed_at_any_time_is_resumed_with_the_same_rows(tmp_path, pages):
    location = CASE.fill(tmp_path, rows(CASE, 200))
    run_until_killed(location, 5, pages)
    store = LancedbStore(location)
    migration = store.migration(TAG, NEW_DIM)
    fill_migration(store, migration)
    assert migration.count() == 200
    ids, vectors = every(store, "new")
    expected = translate(None, rows(CASE, 200).vectors)
    assert sorted(ids) == list(range(200))
    assert np.allclose(vectors[np.argsort(ids)], expected, atol=1e-6)
    migration.cutover(translate)
    first = rows(CASE, 200)
    assert same(CASE.read(location), Rows(first.ids, expected, first.payloads))
    store.close()
