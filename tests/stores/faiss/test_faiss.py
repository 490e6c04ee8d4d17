"""What FAISS adds to the contract: types of indexes, the file of texts, and full disks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import faiss
import numpy as np
import pytest
import torch

from app.errors import (
    InvalidFilter,
    StoreChanged,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
    StoreUnsupported,
)
from app.stores.faiss import FaissStore
from app.stores.port import Search, StoreLocation
from tests.disks import read_only, small_disk
from tests.stores.cases.faiss import FaissCase, build, save
from tests.stores.moving import NEW_DIM, OLD_DIM, TAG, every, fill_migration, rows, translate

CASE = FaissCase()

#: types of indexes, each with the largest error of a vector that it stores
TYPES = {
    "Flat": 0.0,
    "HNSW8": 0.0,
    "IDMap,Flat": 0.0,
    "IDMap2,HNSW8": 0.0,
    "IVF4,Flat": 0.0,
    "IDMap2,IVF4,Flat": 0.0,
    "SQ8": 0.01,
    "IDMap2,PQ3x4": 0.5,
    "IVF4,SQfp16": 0.001,
}


@pytest.fixture
def filled(tmp_path: Path):
    location = CASE.fill(tmp_path, rows(CASE, 50))
    return location, FaissStore(location)


def names(folder: str | Path) -> set[str]:
    return {each.name for each in Path(folder).iterdir()}


@pytest.mark.parametrize("kind", TYPES)
def test_each_type_of_index_is_written_again(tmp_path, kind):
    vectors = rows(CASE, 64).vectors
    first = 0 if kind in ("Flat", "HNSW8", "SQ8") else 2**40
    path = tmp_path / "old.index"
    save(build({first + row: vector for row, vector in enumerate(vectors)}, OLD_DIM, kind), path)
    store = FaissStore(StoreLocation("faiss", str(tmp_path), "old.index"))
    content = path.read_bytes()
    facts, ids = store.facts(), [first + 63, first + 5]
    assert (facts.rows, facts.dim) == (64, OLD_DIM)
    assert ("lossy-vectors" in {note.code for note in facts.notes}) == (TYPES[kind] > 0)
    page = store.fetch([*ids, first + 64, "63"])
    assert (list(page.ids), page.vectors.shape) == (ids, (2, OLD_DIM))
    migration = store.migration(TAG, NEW_DIM)
    fill_migration(store, migration)
    assert migration.count() == 64
    migration.finish()
    new = tmp_path / f"old.index.anchorage-{TAG}-new"
    assert names(tmp_path) == {"old.index", new.name}
    assert path.read_bytes() == content
    assert type(faiss.read_index(str(path))) is type(faiss.read_index(str(new)))
    old_ids, old = every(store)
    new_ids, made = every(FaissStore(StoreLocation("faiss", str(tmp_path), new.name)))
    assert new_ids == old_ids
    assert np.abs(made - translate(None, old)).max() <= TYPES[kind] + 1e-6


@pytest.mark.usefixtures("filled")
def test_links_lead_to_files_of_the_address(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "near").symlink_to("../items.faiss")
    (tmp_path / "near").symlink_to("items.faiss")
    assert FaissStore(StoreLocation("faiss", str(tmp_path), "near")).facts().rows == 50
    with pytest.raises(StoreUnsupported, match="outside the address"):
        FaissStore(StoreLocation("faiss", str(tmp_path / "below"), "near")).facts()


def test_files_that_cannot_be_read_or_moved_are_refused(tmp_path):
    vectors = rows(CASE, 50).vectors

    def store(name: str) -> FaissStore:
        return FaissStore(StoreLocation("faiss", str(tmp_path), name))

    twice = faiss.index_factory(OLD_DIM, "IDMap2,Flat")
    twice.add_with_ids(vectors[:2], np.array([1, 1]))
    manhattan = faiss.index_factory(OLD_DIM, "Flat", faiss.METRIC_L1)
    hashes = faiss.IndexLSH(OLD_DIM, 16)
    for name, index in {"twice": twice, "manhattan": manhattan, "hashes": hashes}.items():
        save(index, tmp_path / name)
        with pytest.raises(StoreUnsupported, match="Build the vectors into another one"):
            store(name).facts()
    with pytest.raises(StoreChanged, match="no file `gone`"):
        store("gone").facts()
    (tmp_path / "text").write_text("no index " * 100)
    with pytest.raises(StoreUnavailable, match="Index type"):
        store("text").facts()
    save(build(dict(enumerate(vectors)), OLD_DIM, "PQ3x4"), tmp_path / "parts")
    with pytest.raises(StoreUnsupported, match="10 dimensions"):
        store("parts").migration(TAG, 10).prepare()
    small = build(dict(enumerate(vectors)), OLD_DIM, "PQ3x4")
    small.remove_ids(np.arange(15, 50))
    save(small, tmp_path / "small")
    with pytest.raises(StoreUnsupported, match="15 rows, and FAISS needs 16"):
        store("small").migration(TAG, NEW_DIM).prepare()
    with pytest.raises(InvalidFilter):
        store("parts").search(Search(vectors[:1], 3, filter={"a": 1}))
    assert not any("anchorage" in name for name in names(tmp_path))


def test_texts_are_read_by_the_last_line_of_an_id(filled):
    location, store = filled
    lines = CASE.path(location).with_suffix(".jsonl")
    with lines.open("a") as file:
        file.write('\n{"id": 3, "text": "again", "n": NaN}\n')
    assert list(store.texts([3, 4, 99])) == ["again", "item 4 é", None]
    [hits] = store.search(Search(rows(CASE, 50).vectors[[3]], 1, payload=True))
    assert hits.payloads == [{"text": "again", "n": None}]
    for wrong in (b'{"id": "3"}', b'{"id": 4', b"7"):
        lines.write_bytes(b'{"id": 3, "text": "a"}\n' + wrong + b"\n")
        with pytest.raises(StoreUnsupported, match=r"Line 2 of `items\.jsonl`"):
            store.texts([3])
    lines.unlink()
    assert store.search(Search(rows(CASE, 50).vectors[[3]], 1, payload=True))[0].payloads == [{}]
    with pytest.raises(StoreUnsupported, match=r"items\.jsonl"):
        store.texts([3])


def test_searches_and_torch_run_in_threads_at_once(filled):
    """faiss-cpu and torch each bring a runtime of OpenMP."""
    _, store = filled
    first = rows(CASE, 50)

    def search(number: int) -> bool:
        torch.linalg.svd(torch.from_numpy(first.vectors))
        hits = store.search(Search(first.vectors, 3, exact=True))
        return [each.ids[0] for each in hits] == list(first.ids)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(search, range(40)))


def test_a_full_disk_and_a_read_only_one_keep_the_file(tmp_path):
    with small_disk(tmp_path / "disk", 1024) as disk:
        location = CASE.fill(disk, rows(CASE, 50))
        before, store = CASE.path(location).read_bytes(), FaissStore(location)
        with read_only(disk), pytest.raises(StoreRefused):
            store.migration(TAG, NEW_DIM).prepare()
        migration = store.migration(TAG, 3072)
        migration.prepare()
        wide = np.random.default_rng(0).normal(size=(50, 3072)).astype(np.float32)
        migration.write(list(range(50)), wide)
        with pytest.raises(StoreFull):
            migration.build_index()
        assert not any("half" in name for name in names(disk))
        assert CASE.path(location).read_bytes() == before
        migration.abandon()
        assert names(disk) == {"items.faiss", "items.jsonl"}
