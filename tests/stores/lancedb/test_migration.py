"""What a migration in LanceDB has to withstand: kinds of vectors and indexes, writers, crashes."""

from __future__ import annotations

from pathlib import Path

import lancedb
import pyarrow as pa
import pytest
from lancedb.index import BTree, HnswSq, IvfPq, IvfSq

from app.stores.base import StoreLocation
from app.stores.lancedb import LancedbStore
from app.stores.lancedb.columns import nearest_divisor
from tests.stores.cases.lancedb import LancedbCase, as_table, open_table
from tests.stores.moving import (
    NEW_DIM,
    TAG,
    fill_migration,
    rows,
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
    table = open_table(location)
    assert table.schema.field(f"vector_anchorage_{TAG}").type == pa.list_(kind, NEW_DIM)
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
    migration.finish()
    assert store.facts().metric == metric
    assert open_table(location).schema.names[:-1] == as_table(many).schema.names


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
