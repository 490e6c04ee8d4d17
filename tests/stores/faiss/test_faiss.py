"""What FAISS adds to the contract: types of indexes, files that clients rewrite, and crashes."""

from __future__ import annotations

import os
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
from app.stores.base import StoreLocation
from app.stores.faiss import FaissStore
from tests.disks import read_only, small_disk
from tests.stores.cases.faiss import FaissCase, build, save
from tests.stores.moving import (
    NEW_DIM,
    OLD_DIM,
    TAG,
    fill_migration,
    rows,
    translate,
)

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


def vectors_of(path: Path) -> dict[int, np.ndarray]:
    """Return the vectors of a file as a client reads them."""
    index = faiss.read_index(str(path))
    inner = faiss.downcast_index(index.index) if hasattr(index, "index") else index
    ids = faiss.vector_to_array(index.id_map) if inner is not index else range(index.ntotal)
    if isinstance(inner, faiss.IndexIVF):
        inner.set_direct_map_type(faiss.DirectMap.Hashtable)
        if inner is index:
            ids = [
                int(id)
                for number in range(inner.nlist)
                if (size := inner.invlists.list_size(number))
                for id in faiss.rev_swig_ptr(inner.invlists.get_ids(number), size)
            ]
    keys = ids if inner is index else range(index.ntotal)
    return {int(id): inner.reconstruct(int(key)) for id, key in zip(ids, keys, strict=True)}


@pytest.mark.parametrize("kind", TYPES)
def test_each_type_of_index_is_written_again(tmp_path, kind):
    vectors = rows(CASE, 64).vectors
    first = 0 if kind in ("Flat", "HNSW8", "SQ8") else 2**40
    path = tmp_path / "old.index"
    save(build({first + row: vector for row, vector in enumerate(vectors)}, OLD_DIM, kind), path)
    store = FaissStore(StoreLocation("faiss", str(tmp_path), "old.index"))
    facts, before, content = store.facts(), vectors_of(path), path.read_bytes()
    assert (facts.rows, facts.dim, facts.can_migrate) == (64, OLD_DIM, True)
    assert ("lossy-vectors" in {note.code for note in facts.notes}) == (TYPES[kind] > 0)
    ids = [first + 63, first + 5]
    page = store.fetch([*ids, first + 64, "63"])
    assert (list(page.ids), page.vectors.shape) == (ids, (2, OLD_DIM))
    migration = store.migration(TAG, NEW_DIM)
    fill_migration(store, migration)
    assert migration.count() == 64
    new = tmp_path / f"old.index.anchorage-{TAG}-new"
    after = vectors_of(new)
    want = translate(None, np.stack([before[id] for id in sorted(before)]))
    made = np.stack([after[id] for id in sorted(after)])
    assert np.abs(made - want).max() <= TYPES[kind] + 1e-6
    assert type(faiss.read_index(str(path))) is type(faiss.read_index(str(new)))
    assert path.read_bytes() == content
    migration.finish()
    assert names(tmp_path) == {"old.index", new.name}


def test_a_file_that_is_half_written_is_an_error_until_it_is_whole(filled):
    location, store = filled
    path, query = CASE.path(location), rows(CASE, 50).vectors[[7]]
    whole = path.read_bytes()
    for half in (b"", whole[:30], whole[: len(whole) // 2], whole[:-1], b"IxMp" + bytes(200)):
        path.write_bytes(half)
        with pytest.raises(StoreUnavailable, match="writing"):
            store.search(query, 1)
    path.write_bytes(whole)
    assert store.search(query, 1)[0].ids == [7]
    CASE.delete(location, [7])  # by a rename
    assert store.search(query, 1)[0].ids != [7]


@pytest.mark.usefixtures("filled")
def test_links_lead_to_files_of_the_address(tmp_path):
    (tmp_path / "below").mkdir()
    for name, target in {"near": "../items.faiss", "far": "../../", "dang.faiss": "gone"}.items():
        (tmp_path / "below" / name).symlink_to(target)
    (tmp_path / "near").symlink_to("items.faiss")

    def facts(folder: Path, name: str):
        return FaissStore(StoreLocation("faiss", str(folder), name)).facts()

    assert facts(tmp_path, "near").can_migrate
    for name in ("near", "far"):
        with pytest.raises(StoreUnsupported, match="outside the address"):
            facts(tmp_path / "below", name)
    with pytest.raises(StoreChanged, match="a link to a file that does not exist"):
        facts(tmp_path / "below", "dang.faiss")


def test_files_that_cannot_be_read_or_moved_are_refused(tmp_path):
    vectors = rows(CASE, 50).vectors

    def store(name: str) -> FaissStore:
        return FaissStore(StoreLocation("faiss", str(tmp_path), name))

    twice = faiss.index_factory(OLD_DIM, "IDMap2,Flat")
    twice.add_with_ids(vectors[:2], np.array([1, 1]))
    manhattan = faiss.index_factory(OLD_DIM, "Flat", faiss.METRIC_L1)
    for name, index in {"twice": twice, "manhattan": manhattan}.items():
        save(index, tmp_path / name)
        with pytest.raises(StoreUnsupported):
            store(name).facts()
    rotated = faiss.index_factory(OLD_DIM, "PCA3,Flat")
    rotated.train(vectors)
    save(rotated, tmp_path / "rotated")
    with pytest.raises(StoreUnsupported, match="IndexPreTransform"):
        store("rotated").facts()
    save(faiss.IndexLSH(OLD_DIM, 16), tmp_path / "hashes")
    with pytest.raises(StoreUnsupported, match="IndexLSH"):
        store("hashes").facts()
    binary = faiss.IndexBinaryFlat(8)
    faiss.write_index_binary(binary, str(tmp_path / "binary"))
    os.utime(tmp_path / "binary", (0, 0))
    with pytest.raises(StoreUnsupported, match="no index file"):
        store("binary").facts()
    with pytest.raises(StoreChanged, match="twice"):
        store("twic").facts()
    (tmp_path / "link").symlink_to("manhattan")
    save(build(dict(enumerate(vectors)), OLD_DIM, "Flat"), tmp_path / "manhattan")
    few = build(dict(enumerate(vectors)), OLD_DIM, "IVF20,Flat")
    few.remove_ids(np.arange(40))
    save(few, tmp_path / "few")
    assert not store("few").facts().can_migrate
    parts = build(dict(enumerate(vectors)), OLD_DIM, "PQ3x4")
    parts.reset()
    parts.add(vectors[:10])
    save(parts, tmp_path / "parts")
    with pytest.raises(StoreUnsupported, match="10 dimensions"):
        store("parts").migration(TAG, 10).prepare()
    migration = store("parts").migration(TAG, NEW_DIM)
    with pytest.raises(StoreUnsupported, match="10 rows"):
        fill_migration(store("parts"), migration)
    migration.abandon()
    with pytest.raises(InvalidFilter):
        store("link").search(vectors[:1], 3, filter={"a": 1})
    assert not any("anchorage" in name for name in names(tmp_path))


def test_lists_in_another_file_are_refused(tmp_path):
    index = build(dict(enumerate(rows(CASE, 50).vectors)), OLD_DIM, "IVF4,Flat")
    lists = faiss.OnDiskInvertedLists(4, index.code_size, str(tmp_path / "lists"))
    lists.merge_from(index.invlists, 0)
    index.replace_invlists(lists)
    save(index, tmp_path / "disk")
    before = (tmp_path / "lists").read_bytes()
    with pytest.raises(StoreUnsupported, match="separate file"):
        FaissStore(StoreLocation("faiss", str(tmp_path), "disk")).facts()
    assert (tmp_path / "lists").read_bytes() == before


def test_texts_are_read_by_the_last_line_of_an_id(filled):
    location, store = filled
    lines = CASE.path(location).with_suffix(".jsonl")
    with lines.open("a") as file:
        file.write('\n{"id": 3, "text": "again", "n": NaN}\n')
    assert list(store.texts([3, 4, 99])) == ["again", "item 4 é", None]
    [hits] = store.search(rows(CASE, 50).vectors[[3]], 1, payload=True)
    assert hits.payloads == [{"text": "again", "n": None}]
    for wrong in (b'{"id": "3"}', b"[" * 100_000, b'{"id": 4', b"\xff", b'{"id": true}', b"7"):
        lines.write_bytes(b'{"id": 3, "text": "a"}\n' + wrong + b"\n")
        with pytest.raises(StoreUnavailable, match=r"Line 2 of `items\.jsonl`"):
            store.texts([3])
    os.utime(lines, (0, 0))
    with pytest.raises(StoreUnsupported, match="Correct it"):
        store.facts()
    lines.write_text('{"id": 1000, "text": "a"}\n')
    assert "no-texts" in {note.code for note in store.facts().notes}
    lines.unlink()
    assert store.search(rows(CASE, 50).vectors[[3]], 1, payload=True)[0].payloads == [{}]
    with pytest.raises(StoreUnsupported, match=r"items\.jsonl"):
        store.texts([3])


def test_searches_and_torch_run_in_threads_at_once(filled):
    """faiss-cpu and torch each bring a runtime of OpenMP."""
    _, store = filled
    first = rows(CASE, 50)

    def search(number: int) -> bool:
        torch.linalg.svd(torch.from_numpy(first.vectors))
        hits = store.search(first.vectors, 3, exact=True)
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
