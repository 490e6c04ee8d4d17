"""Faults of LanceDB, each as one clear error that leaves the table usable."""

from __future__ import annotations

from pathlib import Path

import lancedb
import numpy as np
import pyarrow as pa
import pytest

from app.errors import (
    InvalidFilter,
    InvalidOption,
    InvalidRequest,
    StoreChanged,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
    StoreUnsupported,
)
from app.stores.base import StoreLocation
from app.stores.lancedb import LancedbStore
from tests.disks import read_only, small_disk
from tests.stores.cases.lancedb import LancedbCase, open_table
from tests.stores.moving import NEW_DIM, TAG, rows

CASE = LancedbCase()


@pytest.fixture
def filled(tmp_path: Path):
    location = CASE.fill(tmp_path, rows(CASE, 50))
    store = LancedbStore(location)
    yield location, store
    store.close()


@pytest.mark.parametrize("name", ["../other", "/etc/x", "a/b", "", ".hidden", "s3://x"])
def test_a_collection_cannot_leave_the_folder(tmp_path, name):
    with pytest.raises(InvalidRequest, match="collection"):
        LancedbStore(StoreLocation("lancedb", str(tmp_path), name))


def test_the_cloud_is_refused(tmp_path):
    with pytest.raises(StoreUnsupported, match="Cloud"):
        LancedbStore(StoreLocation("lancedb", "db://mine", "items"))


def test_a_missing_folder_and_a_missing_table(filled, tmp_path):
    with pytest.raises(StoreUnavailable, match="folder"):
        LancedbStore(StoreLocation("lancedb", str(tmp_path / "none"), "items")).facts()
    location, store = filled
    with pytest.raises(StoreChanged, match="not found"):
        LancedbStore(StoreLocation("lancedb", location.url, "other")).facts()
    assert store.facts().rows == 50
    lancedb.connect(location.url).drop_table("items")
    with pytest.raises(StoreChanged):
        store.scroll(None, 5)


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
    many = pa.array([[[0.5] * 8], [[0.5] * 8]], pa.list_(pa.list_(pa.float32(), 8)))
    store = table_with(tmp_path / "c", id=ids, many=many)
    with pytest.raises(StoreUnsupported, match="0 columns"):
        store.facts()
    with pytest.raises(StoreUnsupported, match="no column `id`"):
        table_with(tmp_path / "d", key=ids, one=floats).facts()
    with pytest.raises(StoreUnsupported, match="type double"):
        table_with(tmp_path / "e", id=pa.array([0.5, 1.5]), one=floats).facts()


def test_ids_that_are_not_unique_are_found_before_anything_is_written(tmp_path):
    floats = pa.FixedSizeListArray.from_arrays(pa.array([0.5] * 16, pa.float32()), 8)
    store = table_with(tmp_path, id=pa.array([1, 1]), one=floats)
    with pytest.raises(StoreChanged, match="more than once"):
        store.migration(TAG, NEW_DIM).prepare()
    assert lancedb.connect(str(tmp_path)).list_tables().tables == ["odd"]


def test_filters_and_options(filled):
    location, store = filled
    query = rows(CASE, 50).vectors[:1]
    [hits] = store.search(query, 50, filter="number < 5")
    assert sorted(hits.ids) == [0, 1, 2, 3, 4]
    for wrong in ("no_such_column < 5", "number <", {"number": 5}):
        with pytest.raises(InvalidFilter):
            store.search(query, 3, filter=wrong)
    odd = StoreLocation("lancedb", location.url, "plain", options={"distance": "manhattan"})
    lancedb.connect(location.url).create_table("plain", open_table(location).to_arrow())
    with pytest.raises(InvalidOption, match="manhattan"):
        LancedbStore(odd).facts()
    near = StoreLocation("lancedb", location.url, "plain", options={"distance": "cosine"})
    assert LancedbStore(near).facts().metric == "cosine"
    assert LancedbStore(StoreLocation("lancedb", location.url, "plain")).facts().metric == (
        "euclidean"
    )


def test_a_column_that_somebody_renamed_is_noticed(filled):
    location, _ = filled
    table = open_table(location)
    table.alter_columns({"path": "vector", "rename": "renamed"})
    named = StoreLocation("lancedb", location.url, "items", vector_field="vector")
    with pytest.raises(StoreChanged, match="no column `vector`"):
        LancedbStore(named).facts()


def test_a_full_disk_stops_a_write_and_keeps_the_table(tmp_path):
    with small_disk(tmp_path / "disk", 2 * 1024) as disk:
        location = CASE.fill(disk, rows(CASE, 50))
        store = LancedbStore(location)
        migration = store.migration(TAG, 16384)
        migration.prepare()
        wide = np.random.default_rng(0).normal(size=(50, 16384)).astype(np.float32)
        with pytest.raises(StoreFull):
            migration.write(list(range(50)), wide)
        assert store.facts().rows == 50
        assert len(CASE.read(location)) == 50
        store.close()


def test_a_read_only_folder_refuses_writes_and_serves_reads(tmp_path):
    with small_disk(tmp_path / "disk", 8 * 1024) as disk:
        location = CASE.fill(disk, rows(CASE, 50))
        store = LancedbStore(location)
        with read_only(disk):
            assert store.facts().rows == 50
            with pytest.raises(StoreRefused):
                store.migration(TAG, NEW_DIM).prepare()
        store.close()


def test_mistakes_of_ours_are_not_called_faults_of_the_store(filled):
    _, store = filled
    for mistake, kind in ((lambda: int("x"), ValueError), (lambda: {}["x"], KeyError)):
        with pytest.raises(kind), store.connection.faults():
            mistake()
    with pytest.raises(ValueError, match="shape"), store.connection.faults():
        np.stack([np.zeros(2), np.zeros(3)])
