"""What FAISS adds to the contract: types of indexes, links, threads, and full disks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import faiss
import numpy as np
import pytest
import torch

from app.errors import StoreChanged, StoreUnavailable, StoreUnsupported
from app.stores.faiss import FaissStore
from app.stores.port import Search, StoreLocation
from tests.stores.cases.faiss import FaissCase, build, save
from tests.stores.moving import NEW_DIM, OLD_DIM, TAG, every, fill_migration, rows, translate

CASE = FaissCase()


@pytest.fixture
def filled(tmp_path: Path):
    location = CASE.fill(tmp_path, rows(CASE, 50))
    return location, FaissStore(location)


def names(folder: str | Path) -> set[str]:
    return {each.name for each in Path(folder).iterdir()}


@pytest.mark.parametrize("kind", ["Flat", "HNSW8", "IDMap,Flat", "IDMap2,HNSW8"])
def test_each_type_of_index_is_written_again(tmp_path, kind):
    vectors = rows(CASE, 64).vectors
    first = 2**40 if kind.startswith("IDMap") else 0
    path = tmp_path / "old.index"
    save(build({first + row: vector for row, vector in enumerate(vectors)}, OLD_DIM, kind), path)
    store = FaissStore(StoreLocation("faiss", str(tmp_path), "old.index"))
    content = path.read_bytes()
    facts, ids = store.facts(), [first + 63, first + 5]
    assert (facts.rows, facts.dim) == (64, OLD_DIM)
    assert [note.code for note in facts.notes] == ([] if first else ["ids-are-positions"])
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
    assert np.abs(made - translate(None, old)).max() <= 1e-6


@pytest.mark.usefixtures("filled")
def test_links_lead_to_files_of_the_address(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "near").symlink_to("../items.faiss")
    (tmp_path / "near").symlink_to("items.faiss")
    assert FaissStore(StoreLocation("faiss", str(tmp_path), "near")).facts().rows == 50
    with pytest.raises(StoreUnsupported, match="outside the address"):
        FaissStore(StoreLocation("faiss", str(tmp_path / "below"), "near")).facts()


def test_files_that_cannot_be_read_or_moved_are_refused(tmp_path):
    vectors = rows(CASE, 64).vectors

    def store(name: str) -> FaissStore:
        return FaissStore(StoreLocation("faiss", str(tmp_path), name))

    twice = faiss.index_factory(OLD_DIM, "IDMap2,Flat")
    twice.add_with_ids(vectors[:2], np.array([1, 1]))
    save(twice, tmp_path / "twice")
    save(faiss.index_factory(OLD_DIM, "Flat", faiss.METRIC_L1), tmp_path / "manhattan")
    for kind in ("IVF4,Flat", "SQ8", "IDMap2,PQ3x4", "HNSW8_SQ8", "IDMap2,IVF4,Flat"):
        index = build(dict(enumerate(vectors)), OLD_DIM, kind)
        if "IVF" in kind:  # after which the inner ids of an IDMap are wrong
            index.remove_ids(np.array([10]))
        save(index, tmp_path / kind)
    for name in names(tmp_path):
        with pytest.raises(StoreUnsupported, match="Build the vectors into another one"):
            store(name).facts()
    with pytest.raises(StoreChanged, match="no file `gone`"):
        store("gone").facts()
    (tmp_path / "text").write_text("no index " * 100)
    with pytest.raises(StoreUnavailable, match="Index type"):
        store("text").facts()


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
