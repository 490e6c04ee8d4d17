"""Faults of LanceDB, each as one clear error that leaves the table usable."""

from __future__ import annotations

from pathlib import Path

import lancedb
import pyarrow as pa
import pytest

from app.errors import (
    InvalidFilter,
    InvalidOption,
    StoreChanged,
    StoreUnavailable,
    StoreUnsupported,
)
from app.stores.lancedb import LancedbStore
from app.stores.port import Search, StoreLocation
from tests.stores.cases.lancedb import LancedbCase, open_table
from tests.stores.moving import NEW_DIM, TAG, rows

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
