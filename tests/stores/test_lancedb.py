"""LanceDB beyond the contract: faults, filters, and the vectors and indexes that a move keeps."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import lancedb
import pyarrow as pa
import pytest
from lancedb.embeddings import EmbeddingFunctionConfig, TextEmbeddingFunction, register
from lancedb.index import BTree, HnswSq, IvfPq

from app.errors import (
    InvalidFilter,
    InvalidOption,
    StoreChanged,
    StoreUnavailable,
    StoreUnsupported,
)
from app.stores.lancedb import LancedbStore
from app.stores.port import Search, StoreLocation
from tests.stores.cases.lancedb import LancedbCase, as_table, open_table
from tests.stores.moving import NEW_DIM, OLD_DIM, TAG, fill_migration, rows, translate, write_all

CASE = LancedbCase()


@pytest.fixture
def filled(tmp_path: Path):
    location = CASE.fill(tmp_path, rows(CASE, 50))
    store = LancedbStore(location)
    yield location, store
    store.close()


def test_a_missing_folder_and_a_missing_table(filled, tmp_path):
    for url in (str(tmp_path / "none"), "db://mine", "s3://bucket/lake"):
        with pytest.raises(StoreUnavailable, match="folder"):
            LancedbStore(StoreLocation("lancedb", url, "items")).facts()
    location, _ = filled
    for name in ("other", "../other"):
        with pytest.raises(StoreChanged, match=name):
            LancedbStore(StoreLocation("lancedb", location.url, name)).facts()


def table_with(folder: Path, **columns: pa.Array) -> LancedbStore:
    lancedb.connect(str(folder)).create_table("odd", pa.table(columns))
    return LancedbStore(StoreLocation("lancedb", str(folder), "odd"))


def test_vectors_that_cannot_be_translated_are_refused(tmp_path):
    ids = pa.array([1, 2])
    bits = pa.FixedSizeListArray.from_arrays(pa.array(range(16), pa.uint8()), 8)
    floats = pa.FixedSizeListArray.from_arrays(pa.array([0.5] * 16, pa.float32()), 8)
    with pytest.raises(StoreUnsupported, match="0 columns of vectors"):
        table_with(tmp_path / "a", id=ids, bits=bits).facts()
    named = StoreLocation("lancedb", str(tmp_path / "a"), "odd", vector_field="bits")
    with pytest.raises(StoreUnsupported, match="binary"):
        LancedbStore(named).facts()
    with pytest.raises(StoreUnsupported, match="2 columns of vectors"):
        table_with(tmp_path / "b", id=ids, one=floats, two=floats).facts()
    with pytest.raises(StoreUnsupported, match="no column `id`"):
        table_with(tmp_path / "d", key=ids, one=floats).facts()
    with pytest.raises(StoreUnsupported, match="integers or text"):
        table_with(tmp_path / "e", id=pa.array([0.5, 1.5]), one=floats).facts()


def test_a_move_that_is_impossible_is_refused_before_anything_is_written(tmp_path):
    floats = pa.FixedSizeListArray.from_arrays(pa.array([0.5] * 16, pa.float32()), 8)
    store = table_with(tmp_path, id=pa.array([1, 1]), one=floats)
    with pytest.raises(StoreChanged, match="more than once"):
        store.migration(TAG, NEW_DIM).prepare()
    assert lancedb.connect(str(tmp_path)).list_tables().tables == ["odd"]


@register("lengths-of-words")
class Lengths(TextEmbeddingFunction):
    def ndims(self):
        return OLD_DIM

    def generate_embeddings(self, texts):
        return [[float(len(text)), 1.0, *[0.0] * (OLD_DIM - 2)] for text in texts]


def test_a_table_that_embeds_by_itself_is_migrated_as_a_copy_that_does_not(tmp_path):
    database = lancedb.connect(str(tmp_path))
    config = EmbeddingFunctionConfig(
        source_column="text", vector_column="vector", function=Lengths.create()
    )
    columns = {"id": pa.array([1, 2]), "text": pa.array(["a", "bc"])}
    table = database.create_table("items", pa.table(columns), embedding_functions=[config])
    store = LancedbStore(StoreLocation("lancedb", str(tmp_path), "items"))
    facts = store.facts()
    assert (facts.rows, facts.can_migrate) == (2, False)
    [note] = facts.notes
    assert note.code == "embedding-function"
    advised = re.search(r"`(db\.create_table.*?\)\))`", note.detail)[1]
    copy = eval(advised, {"db": database, "table": table})  # noqa: S307  # our own advice
    moved = LancedbStore(StoreLocation("lancedb", str(tmp_path), "copy"))
    assert moved.facts().can_migrate
    copy.add([{"id": 3, "text": "d", "vector": [0.5] * OLD_DIM}])
    assert len(copy.search([1.0] * OLD_DIM).to_list()) == 3
    migration = moved.migration(TAG, OLD_DIM)
    write_all(moved, migration, by=lambda ids, vectors: vectors)
    migration.build_index()
    assert [each.code for each in moved.facts().notes] == ["two-columns-of-vectors"]
    copy = database.open_table("copy")
    with pytest.raises(ValueError, match="more than one vector column"):
        copy.search([1.0] * OLD_DIM).to_list()
    assert len(copy.search([1.0] * OLD_DIM, vector_column_name="vector").to_list()) == 3


def test_filters_and_options(filled):
    location, store = filled
    query = rows(CASE, 50).vectors[:1]
    [hits] = store.search(Search(query, 50, filter="number < 5"))
    assert sorted(hits.ids) == [0, 1, 2, 3, 4]
    for wrong in ("no_such_column < 5", "number <", {"number": 5}):
        with pytest.raises(InvalidFilter):
            store.search(Search(query, 3, filter=wrong))
    odd = StoreLocation("lancedb", location.url, "plain", options={"distance": "manhattan"})
    lancedb.connect(location.url).create_table("plain", open_table(location).to_arrow())
    with pytest.raises(InvalidOption, match="manhattan"):
        LancedbStore(odd).facts()
    near = StoreLocation("lancedb", location.url, "plain", options={"distance": "cosine"})
    assert LancedbStore(near).facts().metric == "cosine"
    plain = StoreLocation("lancedb", location.url, "plain")
    assert LancedbStore(plain).facts().metric == "euclidean"


def test_half_floats_unsigned_ids_and_rows_without_a_vector_are_kept(tmp_path):
    kind, some = pa.float16(), rows(CASE, 30)
    table = as_table(some, kind)
    ids = pa.array([2**64 - 1, *some.ids[1:]], pa.uint64())
    vectors = pa.array([*table["vector"].to_pylist()[:-1], None], pa.list_(kind, OLD_DIM))
    table = table.set_column(0, "id", ids).set_column(4, "vector", vectors)
    lancedb.connect(str(tmp_path)).create_table("items", table, on_bad_vectors="null")
    location = StoreLocation("lancedb", str(tmp_path), "items", options={"distance": "cosine"})
    store = LancedbStore(location)
    assert (store.facts().dtype, store.facts().rows) == ("float16", 30)
    before = open_table(location).to_arrow()
    migration = store.migration(TAG, NEW_DIM)
    fill_migration(store, migration)
    assert migration.count_old() == migration.count() == 29
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
