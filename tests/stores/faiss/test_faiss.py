"""What FAISS adds to the contract: types of indexes, files that clients rewrite, and crashes."""

from __future__ import annotations

import os
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
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
from tests.stores.cases.base import Rows
from tests.stores.cases.faiss import FaissCase, build, save
from tests.stores.moving import (
    NEW_DIM,
    OLD_DIM,
    TAG,
    drain,
    fill_migration,
    rows,
    run_until_killed,
    same,
    translate,
    translate_back,
)
from tests.waiting import slack

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
def test_each_type_of_index_is_moved_there_and_back(tmp_path, kind):
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
    migration.cutover(translate)
    after = vectors_of(path)
    want = translate(None, np.stack([before[id] for id in sorted(before)]))
    made = np.stack([after[id] for id in sorted(after)])
    assert np.abs(made - want).max() <= TYPES[kind] + 1e-6
    assert type(faiss.read_index(str(path))) is type(
        faiss.read_index(f"{path}.anchorage-{TAG}-old")
    )
    [hits] = store.search(made[[9]], 3, side="new", exact=True, vectors=True)
    assert hits.vectors is not None
    assert TYPES[kind] > 0.1 or hits.ids[0] == sorted(after)[9]
    assert len(migration.changes(10)) == 0  # approximations are no changes
    migration.rollback(translate_back)
    assert path.read_bytes() == content
    migration.cutover(translate)
    migration.finish()
    assert names(tmp_path) == {"old.index"}


def test_a_rollback_after_writes_keeps_every_other_vector(filled, tmp_path):
    location, store = filled
    before = CASE.read(location)
    migration = store.migration(TAG, NEW_DIM)
    fill_migration(store, migration)
    migration.cutover(translate)
    later = rows(CASE, 1, 70)
    CASE.insert(location, Rows(later.ids, translate(None, later.vectors), later.payloads))
    migration.rollback(translate_back)
    after = CASE.read(location)
    assert set(after) == {*before, 70}
    assert all(np.array_equal(after[id][0], before[id][0]) for id in before)
    migration.abandon()
    assert names(tmp_path) == {"items.faiss", "items.jsonl"}


def test_ids_that_are_positions_shift_with_the_rows(tmp_path):
    vectors = rows(CASE, 30).vectors
    path = tmp_path / "index.faiss"
    save(build(dict(enumerate(vectors)), OLD_DIM, "Flat"), path)
    store = FaissStore(StoreLocation("faiss", str(tmp_path), "index.faiss"))
    migration = store.migration(TAG, NEW_DIM)
    migration.prepare()
    page = store.scroll(None, 30)
    migration.write(page.ids[10:], translate(None, page.vectors[10:]))
    migration.build_index()  # the first ten have no new vector yet
    kept = np.delete(vectors, 3, axis=0)
    save(build(dict(enumerate(kept)), OLD_DIM, "Flat"), path)
    migration.cutover(translate)
    assert np.allclose(np.stack(list(vectors_of(path).values())), translate(None, kept), atol=1e-6)


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


def test_a_file_that_changes_after_the_comparison_is_not_replaced(filled):
    location, store = filled
    migration = store.migration(TAG, NEW_DIM)
    fill_migration(store, migration)
    CASE.insert(location, rows(CASE, 1, 60))

    def translate_slowly(ids, vectors):
        CASE.insert(location, rows(CASE, 1, 61))
        return translate(ids, vectors)

    with pytest.raises(StoreChanged, match="rewrote"):
        migration.cutover(translate_slowly)
    assert {60, 61} <= set(CASE.read(location))
    migration.cutover(translate)
    found = CASE.read(location)
    for number in (60, 61):
        want = translate(None, rows(CASE, 1, number).vectors)[0]
        assert np.allclose(found[number][0], want, atol=1e-6)


def test_a_client_that_writes_another_dimension_is_noticed(filled):
    location, store = filled
    migration = store.migration(TAG, NEW_DIM)
    fill_migration(store, migration)
    wide = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
    old = CASE.path(location).read_bytes()
    save(build(dict(enumerate(wide)), 8), CASE.path(location))
    with pytest.raises(StoreChanged, match="8 dimensions"):
        migration.cutover(translate)
    with pytest.raises(StoreChanged, match="8 dimensions"):
        store.search(rows(CASE, 1).vectors, 3)
    CASE.path(location).write_bytes(old)
    migration.cutover(translate)


@pytest.mark.parametrize("crash", ["link", "replace", "fsync"])
@pytest.mark.parametrize("client_writes", [False, True])
def test_a_switch_that_a_crash_interrupts_is_continued(
    filled, monkeypatch, crash, client_writes, tmp_path
):
    location, store = filled
    fill_migration(store, store.migration(TAG, NEW_DIM))
    first = rows(CASE, 50)
    new = Rows(first.ids, translate(None, first.vectors), first.payloads)

    replace = Path.replace

    def stop(*values):
        if crash != "replace" or values[1] == CASE.path(location):
            raise KeyboardInterrupt
        return replace(*values)

    def interrupted(step, turn, sign):
        owner = Path if crash == "replace" else os
        with monkeypatch.context() as patched:
            patched.setattr(owner, crash, stop)
            if crash == "fsync":  # the one after the rename
                patched.setattr(FaissStore, "_save", lambda *_: None)
            with pytest.raises(KeyboardInterrupt):
                getattr(FaissStore(location).migration(TAG, NEW_DIM), step)(turn)
        again = FaissStore(location)  # of another process
        if client_writes and crash != "fsync":
            vector = sign * next(iter(CASE.read(location).values()))[0]
            CASE.insert(location, Rows([50], vector[None], rows(CASE, 1, 50).payloads))
            migration = again.migration(TAG, NEW_DIM)
            changes = migration.changes(10)
            migration.apply(changes, turn(None, changes.vectors))
        getattr(again.migration(TAG, NEW_DIM), step)(turn)
        return again

    again = interrupted("cutover", translate, 1)
    found = CASE.read(location)
    extra = found.pop(50, None)
    assert same(found, new)
    if extra is not None:
        assert len(extra[0]) == NEW_DIM
        CASE.delete(location, [50])
    again = interrupted("rollback", translate_back, -1)
    found = CASE.read(location)
    found.pop(50, None)
    assert same(found, first)
    again.migration(TAG, NEW_DIM).abandon()
    assert names(tmp_path) == {"items.faiss", "items.jsonl"}


def test_searches_in_the_middle_of_a_switch_keep_the_file_that_it_hides(
    filled, monkeypatch, tmp_path
):
    location, store = filled
    path, migration = CASE.path(location), store.migration(TAG, NEW_DIM)
    fill_migration(store, migration)
    content, query = path.read_bytes(), rows(CASE, 50).vectors[[7]]
    queries = {"old": query, "new": translate(None, query)}
    replace, reader, hidden = Path.replace, FaissStore(location), []

    def search_first(half, name):
        if name == path:
            for side, vectors in queries.items():
                assert reader.search(vectors, 1, side=side)[0].ids == [7]
            hidden.append(reader.find_sides().place("old" if hidden else "new"))
        return replace(half, name)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", search_first)
        migration.cutover(translate)
        with pytest.raises(StoreChanged, match="switched"):  # it makes no file of what is visible
            reader._save(hidden[0])
        assert path.with_name(f"items.faiss.anchorage-{TAG}-old").read_bytes() == content
        migration.rollback(translate_back)
    assert len(hidden) == 2
    assert path.read_bytes() == content
    migration.abandon()
    assert names(tmp_path) == {"items.faiss", "items.jsonl"}


def test_a_search_waits_neither_for_another_file_nor_for_a_build(filled, monkeypatch):
    location, store = filled
    fill_migration(store, store.migration(TAG, NEW_DIM))
    query, limit_s = rows(CASE, 50).vectors[[7]], 20 * slack()
    reader, read = FaissStore(location), faiss.read_index
    begun, go = threading.Event(), threading.Event()
    assert reader.search(query, 1)[0].ids == [7]

    def read_slowly(path):
        begun.set()
        assert go.wait(limit_s)
        return read(path)

    monkeypatch.setattr(faiss, "read_index", read_slowly)
    state = f"{CASE.path(location)}.anchorage-{TAG}-state"
    with closing(sqlite3.connect(state)) as builder, ThreadPoolExecutor(2) as pool:
        builder.execute("BEGIN IMMEDIATE")
        hidden = pool.submit(reader.search, translate(None, query), 1, side="new")
        try:
            assert begun.wait(limit_s)
            assert pool.submit(reader.search, query, 1).result(limit_s)[0].ids == [7]
        finally:
            go.set()
        assert hidden.result()[0].ids == [7]


@pytest.mark.parametrize("pages", [1, 15])
def test_a_run_killed_at_any_time_is_resumed_with_the_same_rows(tmp_path, pages):
    location = CASE.fill(tmp_path, rows(CASE, 80))
    run_until_killed(location, 5, pages)
    store = FaissStore(location)
    migration = store.migration(TAG, NEW_DIM)
    fill_migration(store, migration)
    migration.cutover(translate)
    first = rows(CASE, 80)
    expected = Rows(first.ids, translate(None, first.vectors), first.payloads)
    assert same(CASE.read(location), expected)


def test_clients_that_rewrite_the_file_during_a_run_lose_nothing(filled):
    location, store = filled
    written = dict(zip(rows(CASE, 50).ids, rows(CASE, 50).vectors, strict=True))
    stop = threading.Event()

    def write():
        for number in range(100, 130):
            for one in (rows(CASE, 1, number), rows(CASE, 1, number % 50, seed=number)):
                CASE.insert(location, one)
                written[one.ids[0]] = one.vectors[0]
            if stop.is_set():
                return

    writer = threading.Thread(target=write)
    writer.start()
    migration = store.migration(TAG, NEW_DIM)
    fill_migration(store, migration, 10)
    drain(migration)
    stop.set()
    writer.join()
    migration.cutover(translate)
    found = CASE.read(location)
    assert set(found) == set(written)
    for id, vector in written.items():
        assert np.allclose(found[id][0], translate(None, vector[None])[0], atol=1e-5)


def roll(ids, vectors: np.ndarray) -> np.ndarray:
    return np.roll(vectors, 1, axis=1)


def roll_back(ids, vectors: np.ndarray) -> np.ndarray:
    return np.roll(vectors, -1, axis=1)


def test_an_index_that_a_program_holds_since_before_a_step_replaces_no_vector(filled):
    location, store = filled
    path, first = CASE.path(location), rows(CASE, 50)
    kept, content = path.with_name("items.faiss.kept"), path.read_bytes()
    migration = store.migration(TAG, OLD_DIM)
    migration.prepare()
    page = store.scroll(None, 50)
    migration.write(page.ids, roll(None, page.vectors))
    migration.build_index()
    migration.cutover(roll)
    new = CASE.read(location)
    save(build({**dict(enumerate(first.vectors)), 70: first.vectors[0]}, OLD_DIM), path)
    for call in (lambda: migration.changes(10), migration.finish):
        with pytest.raises(StoreChanged, match=r"has old vectors .*`mv .*`rollback`"):
            call()
    with pytest.raises(StoreChanged, match="has old vectors"):
        migration.rollback(roll_back)
    path.rename(kept)
    migration.rollback(roll_back)
    assert path.read_bytes() == content
    save(build({id: vector for id, (vector, _) in new.items()}, OLD_DIM), path)
    with pytest.raises(StoreChanged, match=r"has new vectors .*`mv .*`cutover`"):
        migration.changes(10)
    path.rename(kept)
    migration.cutover(roll)
    assert np.array_equal(store.fetch(first.ids, "new").vectors, roll(None, first.vectors))
    migration.rollback(roll_back)
    assert np.array_equal(store.fetch(first.ids).vectors, first.vectors)
    path.rename(kept)
    with pytest.raises(StoreChanged, match="no file"):
        store.facts()
    migration.abandon()
    assert same(CASE.read(location), first)


@pytest.mark.parametrize("damage", ["half", "wide", "part"])
def test_the_old_file_stays_where_a_client_damaged_the_new_one(filled, tmp_path, damage):
    location, store = filled
    path, first = CASE.path(location), CASE.read(location)
    migration = store.migration(TAG, NEW_DIM)
    fill_migration(store, migration)
    migration.cutover(translate)
    later = rows(CASE, 1, 70)
    CASE.insert(location, Rows(later.ids, translate(None, later.vectors), later.payloads))
    changes = migration.changes(10)
    migration.apply(changes, translate_back(None, changes.vectors))
    new = vectors_of(path)
    if damage == "half":
        path.write_bytes(path.read_bytes()[:-9])
        with pytest.raises(StoreUnavailable, match="writing it, try again") as raised:
            migration.finish()
        assert raised.value.is_unchanged
        os.utime(path, (0, 0))
    elif damage == "wide":
        save(build(dict(enumerate(np.eye(50, 8, dtype=np.float32))), 8), path)
    else:
        CASE.delete(location, range(40))
    with pytest.raises((StoreChanged, StoreUnsupported), match=r"Run `mv -n .*`rollback`"):
        migration.finish()
    if damage != "part":
        with pytest.raises((StoreChanged, StoreUnsupported), match=r"`mv .*`rollback`"):
            migration.rollback(translate_back)
    path.rename(tmp_path / "items.faiss.kept")
    migration.rollback(translate_back)
    found = vectors_of(path)
    assert all(np.array_equal(found.pop(id), vector) for id, (vector, _) in first.items())
    assert np.allclose(found.pop(70), later.vectors[0], atol=1e-5)
    assert not found
    migration.cutover(translate)
    assert all(np.array_equal(new.pop(id), vector) for id, vector in vectors_of(path).items())
    assert not new
    migration.finish()
    assert names(tmp_path) == {"items.faiss", "items.jsonl", "items.faiss.kept"}


def test_rows_that_a_client_deleted_between_two_cutovers_have_new_vectors_again(filled):
    location, store = filled
    migration = store.migration(TAG, NEW_DIM)
    fill_migration(store, migration)
    migration.cutover(translate)
    CASE.delete(location, [3, 4])
    assert len(migration.changes(10)) == 0
    migration.rollback(translate_back)
    query = translate(None, rows(CASE, 1).vectors)
    assert len(store.search(query, 99, side="new")[0].ids) == 50
    migration.cutover(translate)
    assert set(vectors_of(CASE.path(location))) == set(range(50))


@pytest.mark.usefixtures("filled")
def test_links_lead_to_files_of_the_address(tmp_path):
    (tmp_path / "below").mkdir()
    for name, target in {"near": "../items.faiss", "far": "../../", "dang.faiss": "gone"}.items():
        (tmp_path / "below" / name).symlink_to(target)
    (tmp_path / "near").symlink_to("items.faiss")

    def facts(folder: Path, name: str):
        return FaissStore(StoreLocation("faiss", str(folder), name)).facts()

    found = facts(tmp_path, "near")
    assert not found.can_migrate
    assert "file that it points to" in found.notes[-1].detail
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
    with pytest.raises(StoreUnsupported, match="symbolic link"):
        store("link").migration(TAG, NEW_DIM).prepare()
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
