"""Kinds of vectors and indexes that a migration in LanceDB has to keep."""

from __future__ import annotations

from dataclasses import replace

import lancedb
import pyarrow as pa
import pytest
from lancedb.index import BTree, HnswSq, IvfPq

from app.stores.lancedb import LancedbStore
from app.stores.port import Search, StoreLocation
from tests.stores.cases.lancedb import LancedbCase, as_table, open_table
from tests.stores.moving import NEW_DIM, TAG, fill_migration, rows, translate

CASE = LancedbCase()


def test_half_floats_and_ids_without_a_sign_keep_their_types(tmp_path):
    kind, some = pa.float16(), rows(CASE, 30)
    ids = pa.array([2**64 - 1, *some.ids[1:]], pa.uint64())
    table = as_table(some, kind).set_column(0, "id", ids)
    lancedb.connect(str(tmp_path)).create_table("items", table)
    location = StoreLocation("lancedb", str(tmp_path), "items", options={"distance": "cosine"})
    store = LancedbStore(location)
    assert store.facts().dtype == "float16"
    before = open_table(location).to_arrow()
    migration = store.migration(TAG, NEW_DIM)
    fill_migration(store, migration)
    assert list(migration.read([2**64 - 1]).ids) == [2**64 - 1]
    table = open_table(location)
    assert table.schema.field(f"vector_anchorage_{TAG}").type == pa.list_(kind, NEW_DIM)
    migration.abandon()
    assert open_table(location).to_arrow().equals(before)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (IvfPq(distance_type="dot", num_sub_vectors=3), "IvfPq"),
        (HnswSq(distance_type="cosine", num_partitions=1), "IvfHnswSq"),
    ],
    ids=["pq", "hnsw"],
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


def test_payloads_hold_no_vectors_and_abandon_needs_neither_the_old_column_nor_the_table(tmp_path):
    some, others = rows(CASE, 30), ["id", "text", "number", "json"]
    location = CASE.fill(tmp_path, some)
    database, migration = lancedb.connect(location.url), LancedbStore(location).migration(TAG, 9)
    fill_migration(LancedbStore(location), migration)
    new = LancedbStore(replace(location, vector_field=f"vector_anchorage_{TAG}"))
    [hits] = new.search(Search(translate(None, some.vectors[:1]), 1, payload=True))
    assert list(hits.payloads[0]) == others
    open_table(location).drop_columns(["vector"])
    migration.abandon()
    assert open_table(location).schema.names == others
    database.drop_table("items")
    migration.abandon()
    assert database.list_tables().tables == []
