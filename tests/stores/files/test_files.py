"""Files beyond the contract: formats, ids, bad files, paths, faults and killed runs."""

from __future__ import annotations

import io
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather, ipc, parquet

from app.errors import (
    InvalidOption,
    InvalidRequest,
    ReindexingActive,
    StoreChanged,
    StoreUnsupported,
    WrongState,
)
from app.stores.base import StoreLocation
from app.stores.registry import open_store

DIM, NEW_DIM, TAG = 4, 3, "0badcafe"
VECTORS = np.random.default_rng(3).normal(size=(30, DIM)).astype(np.float32)
MAP = np.random.default_rng(4).normal(size=(DIM, NEW_DIM)).astype(np.float32)


def translate(ids, vectors: np.ndarray) -> np.ndarray:
    return np.float32(vectors @ MAP)


def refuse(ids, vectors: np.ndarray) -> np.ndarray:
    raise AssertionError("no vector is missing")


def column(vectors: np.ndarray, kind: pa.DataType | None = None) -> pa.Array:
    return pa.array(vectors.tolist(), kind or pa.list_(pa.float32(), vectors.shape[1]))


def table(count: int = 30, **columns) -> pa.Table:
    base = {"id": pa.array(range(count)), "vector": column(VECTORS[:count])}
    return pa.table({**base, **columns})


def save(folder: Path, content: pa.Table, name: str = "items.parquet", **options):
    parquet.write_table(content, folder / name, row_group_size=7)
    return open_store(StoreLocation("files", str(folder), name, **options))


def move(store, beside, limit: int = 11) -> None:
    beside.prepare()
    cursor = None
    while True:
        page = store.scroll(cursor, limit)
        beside.write(page.ids, translate(page.ids, page.vectors))
        cursor = page.cursor
        if cursor is None:
            break
    beside.build_index()


# --- formats --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()])
@pytest.mark.parametrize("lists", [pa.list_, pa.large_list, lambda kind: pa.list_(kind, DIM)])
@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_the_type_of_the_column_is_kept(tmp_path: Path, kind, lists, ending: str) -> None:
    content = table().set_column(1, "vector", column(VECTORS, lists(kind)))
    content = content.replace_schema_metadata({"owner": "somebody"})
    name = f"items.{ending}"
    if ending == "parquet":
        store = save(tmp_path, content, name)
    else:
        feather.write_feather(content, tmp_path / name, chunksize=7)
        store = open_store(StoreLocation("files", str(tmp_path), name))
    assert store.facts().dtype == str(np.dtype(kind.to_pandas_dtype()))
    beside = store.beside(TAG, NEW_DIM)
    move(store, beside)
    beside.cutover(refuse)
    beside.finish()
    path = tmp_path / f"items.{TAG}.{ending}"
    read = parquet.read_table(path) if ending == "parquet" else feather.read_table(path)
    assert read.schema.metadata[b"owner"] == b"somebody"
    wanted = lists(kind) if lists in (pa.list_, pa.large_list) else pa.list_(kind, NEW_DIM)
    assert read["vector"].type.value_type == wanted.value_type
    assert type(read["vector"].type) is type(wanted)
    new = np.array(read["vector"].to_pylist())
    assert np.allclose(new, translate(None, store_vectors(kind)), atol=2e-2)
    assert read.drop(["vector"]).equals(content.drop(["vector"]))
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(
        [path.name, f"{name}.live.json"]
    )
    store.close()


def store_vectors(kind: pa.DataType) -> np.ndarray:
    return np.float32(VECTORS.astype(kind.to_pandas_dtype()))


def test_payload_columns_keep_their_types_and_bytes(tmp_path: Path) -> None:
    columns = {
        "when": pa.array([1, 2, None] * 10, pa.timestamp("us", "UTC")),
        "raw": pa.array([b"\x00\xff", b"", None] * 10),
        "deep": pa.array([{"a": [1, 2]}, None, {"a": []}] * 10),
        "money": pa.array([None] * 30, pa.decimal128(9, 2)),
        "kind": pa.array(["x", "y", "x"] * 10).dictionary_encode(),
        "number": pa.array([0.1, float("nan"), 1e300] * 10),
    }
    content = table(**columns)
    store = save(tmp_path, content)
    checksum = store.checksum()
    beside = store.beside(TAG, NEW_DIM)
    move(store, beside)
    beside.cutover(refuse)
    assert store.checksum() == checksum
    read = parquet.read_table(tmp_path / f"items.{TAG}.parquet")
    for name in columns:
        before = parquet.read_table(tmp_path / "items.parquet")[name].combine_chunks()
        after = read[name].combine_chunks()
        assert after.type == before.type
        assert after.to_pylist()[0] == before.to_pylist()[0]
        assert repr(after.to_pylist()) == repr(before.to_pylist())
    [hits] = store.search(VECTORS[:1] @ MAP, 2, side="new", payload=True)
    assert set(hits.payloads[0]) == {"id", *columns}
    store.close()


def test_rows_without_a_vector_stay_without_one(tmp_path: Path) -> None:
    vectors = [None if row % 3 == 0 else VECTORS[row].tolist() for row in range(30)]
    content = table().set_column(1, "vector", pa.array(vectors, pa.list_(pa.float32(), DIM)))
    store = save(tmp_path, content)
    assert store.facts().rows == 20
    for limit in (1, 4, 100):
        ids, cursor = [], None
        while True:
            page = store.scroll(cursor, limit)
            ids += page.ids
            cursor = page.cursor
            if cursor is None:
                break
        assert ids == [row for row in range(30) if row % 3]
    assert list(store.fetch([0, 1, 3, 29]).ids) == [1, 29]
    beside = store.beside(TAG, NEW_DIM)
    move(store, beside)
    beside.cutover(refuse)
    read = parquet.read_table(tmp_path / f"items.{TAG}.parquet")["vector"].to_pylist()
    assert [row for row, each in enumerate(read) if each is None] == list(range(0, 30, 3))
    store.close()


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f4"])
def test_npy_files_have_row_numbers_or_a_file_of_ids(tmp_path: Path, dtype: str) -> None:
    np.save(tmp_path / "v.npy", VECTORS.astype(dtype))
    np.save(tmp_path / "ids.npy", np.array([f"id-{row}" for row in range(30)]))
    for options, first in (({}, 5), ({"ids": "ids.npy"}, "id-5")):
        store = open_store(StoreLocation("files", str(tmp_path), "v.npy", options=options))
        assert list(store.fetch([first, "nothing", -1]).ids) == [first]
        [hits] = store.search(VECTORS[[5]], 1, vectors=True, payload=True)
        assert list(hits.ids) == [first]
        beside = store.beside(TAG, NEW_DIM)
        move(store, beside)
        beside.cutover(refuse)
        new = np.load(tmp_path / f"v.{TAG}.npy", allow_pickle=False)
        assert new.dtype == np.dtype(dtype)
        assert np.allclose(new, translate(None, VECTORS), atol=2e-2)
        beside.rollback(refuse)
        beside.abandon()
        assert sorted(each.name for each in tmp_path.iterdir()) == ["ids.npy", "v.npy"]
        store.close()


@pytest.mark.parametrize(
    "ids",
    [
        pa.array([f"k{row * 7 % 30}" for row in range(30)]),
        pa.array([row * 10**12 - 5 for row in range(30)]),
        pa.array([uuid.UUID(int=row + 9).bytes for row in range(30)], pa.uuid()),
        pa.array(range(29, -1, -1), pa.uint8()),
    ],
)
def test_ids_of_several_types(tmp_path: Path, ids: pa.Array) -> None:
    store = save(tmp_path, table().append_column("key", ids), id_field="key")
    page = store.scroll(None, 100)
    assert len(set(page.ids)) == 30
    back = store.fetch([page.ids[9], page.ids[2], "no such id", 10**30])
    assert list(back.ids) == [page.ids[9], page.ids[2]]
    assert np.array_equal(back.vectors, VECTORS[[9, 2]])
    store.close()


def test_a_memory_file_system_and_two_reindexings() -> None:
    fs = fsspec.filesystem("memory")
    sink = io.BytesIO()
    parquet.write_table(table(), sink)
    fs.pipe_file("/box/items.parquet", sink.getvalue())
    store = open_store(StoreLocation("files", "memory://box", "items.parquet"))
    for tag in ("11111111", "22222222"):
        beside = store.beside(tag, DIM)
        beside.prepare()
        beside.cutover(lambda ids, vectors: vectors + 1)
        beside.finish()
    assert np.allclose(store.scroll(None, 50).vectors, VECTORS + 2)
    names = sorted(each.rpartition("/")[2] for each in fs.find("/box"))
    assert names == ["items.22222222.parquet", "items.parquet.live.json"]
    store.close()
    fs.rm("/box", recursive=True)


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean"])
def test_searches_are_exact(tmp_path: Path, metric: str) -> None:
    store = save(tmp_path, table(), options={"metric": metric})
    queries = VECTORS[:3] + 1
    for row, hits in enumerate(store.search(queries, 5, vectors=True)):
        products = VECTORS @ queries[row]
        if metric == "cosine":
            products = products / np.linalg.norm(VECTORS, axis=1) / np.linalg.norm(queries[row])
        if metric == "euclidean":
            products = -np.linalg.norm(VECTORS - queries[row], axis=1)
        assert list(hits.ids) == np.argsort(-products)[:5].tolist()
        assert np.allclose(hits.scores, np.sort(products)[::-1][:5], atol=1e-4)
        assert np.array_equal(hits.vectors, VECTORS[hits.ids])
    with pytest.raises(StoreUnsupported):
        store.search(queries, 5, filter={"a": 1})
    store.close()


# --- bad files ------------------------------------------------------------------------------------


def parquet_bytes(content: pa.Table) -> bytes:
    sink = io.BytesIO()
    parquet.write_table(content, sink)
    return sink.getvalue()


def arrow_bytes(content: pa.Table) -> bytes:
    sink = io.BytesIO()
    with ipc.new_file(sink, content.schema) as writer:
        writer.write_table(content)
    return sink.getvalue()


def npy_bytes(array: np.ndarray, **options) -> bytes:
    sink = io.BytesIO()
    np.save(sink, array, **options)
    return sink.getvalue()


def with_vectors(values: pa.Array) -> pa.Table:
    return pa.table({"id": range(len(values)), "vector": values})


NAN = VECTORS.copy()
NAN[17, 2] = np.nan
RAGGED = pa.array([row[: 3 + (number == 9)].tolist() for number, row in enumerate(VECTORS)])
BOMB = with_vectors(
    pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(200_000 * 256, np.float32)), 256)
)
OBJECTS = npy_bytes(np.array([{"a": 1}, None], object), allow_pickle=True)

BAD_FILES = {
    "empty.parquet": b"",
    "text.parquet": b"hello" * 100,
    "half.parquet": parquet_bytes(table())[:-200],
    "half.arrow": arrow_bytes(table())[:-300],
    "half.npy": npy_bytes(VECTORS)[:-4],
    "long.npy": npy_bytes(VECTORS) + b"more",
    "nan.parquet": parquet_bytes(with_vectors(column(NAN))),
    "nan.npy": npy_bytes(NAN),
    "large.npy": npy_bytes(np.full((3, 2), 1e300)),
    "ragged.parquet": parquet_bytes(with_vectors(RAGGED)),
    "ragged.arrow": arrow_bytes(with_vectors(RAGGED)),
    "integers.parquet": parquet_bytes(with_vectors(pa.array([[1, 2]], pa.list_(pa.int64())))),
    "integers.npy": npy_bytes(np.arange(6).reshape(2, 3)),
    "flat.npy": npy_bytes(VECTORS[0]),
    "fortran.npy": npy_bytes(np.asfortranarray(VECTORS)),
    "objects.npy": OBJECTS,
    "pickle.npy": pickle.dumps(VECTORS),
    "no-vectors.parquet": parquet_bytes(pa.table({"id": [1]})),
    "no-rows.parquet": parquet_bytes(with_vectors(column(VECTORS[:0].reshape(0, 4)))),
    "two.parquet": parquet_bytes(table().append_column("other", column(VECTORS))),
    "repeats.parquet": parquet_bytes(table().set_column(0, "id", pa.array([1] * 30))),
    "null-id.parquet": parquet_bytes(table().set_column(0, "id", pa.array([None] + [1] * 29))),
    "float-id.parquet": parquet_bytes(table().set_column(0, "id", pa.array([0.5] * 30))),
    "stream.arrow": b"\xff\xff\xff\xff" + arrow_bytes(table())[8:400],
    "bomb.parquet": parquet_bytes(BOMB),
    "name.csv": b"id,vector\n",
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_are_refused_with_a_reason(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(BAD_FILES[name])
    with pytest.raises(StoreUnsupported) as caught:
        open_store(StoreLocation("files", str(tmp_path), name)).facts()
    assert len(caught.value.detail) > 30
    assert str(tmp_path) not in caught.value.detail


def test_the_rows_of_bad_vectors_are_named(tmp_path: Path) -> None:
    (tmp_path / "nan.parquet").write_bytes(BAD_FILES["nan.parquet"])
    store = open_store(StoreLocation("files", str(tmp_path), "nan.parquet"))
    with pytest.raises(StoreUnsupported, match="Row 17") as caught:
        store.facts()
    assert caught.value.rows == [17]


def test_any_cut_of_a_file_is_refused(tmp_path: Path) -> None:
    for name in ("a.parquet", "a.arrow", "a.npy"):
        content = {
            "a.parquet": parquet_bytes,
            "a.arrow": arrow_bytes,
            "a.npy": lambda _: npy_bytes(VECTORS),
        }[name](table())
        for end in range(0, len(content), 97):
            (tmp_path / name).write_bytes(content[:end])
            store = open_store(StoreLocation("files", str(tmp_path), name))
            with pytest.raises((StoreUnsupported, StoreChanged)):
                store.facts()


def test_flipped_bytes_give_errors_of_stores_or_rows(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for name, content in (("a.parquet", parquet_bytes(table())), ("a.arrow", arrow_bytes(table()))):
        for _ in range(60):
            damaged = bytearray(content)
            for place in random.integers(0, len(content), 3):
                damaged[place] ^= int(random.integers(1, 256))
            (tmp_path / name).write_bytes(damaged)
            try:
                store = open_store(StoreLocation("files", str(tmp_path), name))
                store.facts()
                store.checksum()
            except (StoreUnsupported, StoreChanged):
                pass


# --- paths ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "../x.npy", "a/../../x.npy", "/etc/x.npy", "..", "", "a//b.npy", "./a.npy", "~/a.npy",
        "http://x/a.npy", "file:a.npy", "a\\b.npy", "zip://a::b.npy", "a\0.npy", "C:/a.npy",
    ],
)  # fmt: skip
def test_paths_that_leave_the_address_are_refused(tmp_path: Path, name: str) -> None:
    for location in (
        StoreLocation("files", str(tmp_path), name),
        StoreLocation("files", str(tmp_path), "v.npy", options={"ids": name}),
    ):
        with pytest.raises(InvalidRequest):
            open_store(location)


def test_links_and_pointers_that_leave_the_address_are_refused(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    np.save(tmp_path / "secret.npy", VECTORS)
    (inside / "link.npy").symlink_to(tmp_path / "secret.npy")
    (inside / "dir").symlink_to(tmp_path)
    for name in ("link.npy", "dir/secret.npy"):
        with pytest.raises(InvalidRequest):
            open_store(StoreLocation("files", str(inside), name)).facts()
    np.save(inside / "v.npy", VECTORS)
    for pointer in ('{"file": "../secret.npy"}', '{"file": 3}', "[]", '{"file": "x/../v.npy"}'):
        (inside / "v.npy.live.json").write_text(pointer)
        with pytest.raises((StoreChanged, InvalidRequest)):
            open_store(StoreLocation("files", str(inside), "v.npy")).facts()


def test_unknown_options_are_refused(tmp_path: Path) -> None:
    for options in ({"metrics": "dot"}, {"metric": "hamming"}):
        with pytest.raises(InvalidOption):
            open_store(StoreLocation("files", str(tmp_path), "v.npy", options=options))


# --- faults ---------------------------------------------------------------------------------------


def test_a_file_that_changes_stops_the_reindexing(tmp_path: Path) -> None:
    store = save(tmp_path, table())
    beside = store.beside(TAG, NEW_DIM)
    move(store, beside)
    parquet.write_table(table(29), tmp_path / "items.parquet")
    with pytest.raises(StoreChanged, match="was written"):
        beside.cutover(translate)
    with pytest.raises(StoreChanged):
        beside.write([1], VECTORS[:1] @ MAP)
    beside.abandon()
    assert store.facts().rows == 29
    (tmp_path / "items.parquet").unlink()
    with pytest.raises(StoreChanged, match="no file"):
        store.facts()
    store.close()


def test_steps_in_the_wrong_order_are_refused(tmp_path: Path) -> None:
    store = save(tmp_path, table())
    beside = store.beside(TAG, NEW_DIM)
    with pytest.raises(StoreChanged):
        beside.cutover(translate)
    with pytest.raises(StoreChanged):
        store.scroll(None, 5, "new")
    move(store, beside)
    with pytest.raises(ReindexingActive):
        store.beside("deadbeef", NEW_DIM).prepare()
    with pytest.raises(WrongState):
        beside.finish()
    with pytest.raises(StoreUnsupported):
        beside.write([1], VECTORS[:1])
    beside.cutover(refuse)
    with pytest.raises(WrongState):
        beside.abandon()
    with pytest.raises(WrongState):
        beside.write([1], VECTORS[:1] @ MAP)
    store.close()


def test_rows_that_the_sweep_left_out_are_translated_at_the_cutover(tmp_path: Path) -> None:
    store = save(tmp_path, table())
    beside = store.beside(TAG, NEW_DIM)
    beside.prepare()
    beside.write([3, 4, 3], np.float32([[1, 2, 3], [4, 5, 6], [7, 8, 9]]))
    beside.build_index()
    beside.cutover(translate)
    expected = translate(None, VECTORS)
    expected[[3, 4]] = [[7, 8, 9], [4, 5, 6]]
    assert np.allclose(store.scroll(None, 50, "new").vectors, expected, atol=1e-5)
    store.close()


WRITER = """
    import sys
    import numpy as np
    from app.stores.base import StoreLocation
    from app.stores.registry import open_store
    store = open_store(StoreLocation("files", sys.argv[1], sys.argv[2]))
    beside = store.beside("0badcafe", 3)
    beside.prepare()
    cursor = None
    while True:
        page = store.scroll(cursor, 2)
        beside.write(page.ids, np.tile(page.vectors[:, :1], 3))
        print("written", flush=True)
        cursor = page.cursor
        if cursor is None:
            break
    sys.stdin.read()
"""


def test_a_killed_run_continues_with_the_same_rows(tmp_path: Path) -> None:
    store = save(tmp_path, table())
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(tmp_path), "items.parquet"]
    for pages in (1, 5, 9):
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
            assert run.stdout is not None
            for _ in range(pages):
                assert run.stdout.readline() == b"written\n"
            os.kill(run.pid, signal.SIGKILL)
    beside = store.beside(TAG, NEW_DIM)
    assert 18 <= beside.count() <= 30
    (tmp_path / f"items.{TAG}.parquet").write_bytes(b"half a file of a killed cutover")

    def first(ids, vectors):
        return np.tile(vectors[:, :1], NEW_DIM)

    beside.cutover(first)
    assert np.array_equal(store.scroll(None, 50, "new").vectors, first(None, VECTORS))
    beside.finish()
    assert np.array_equal(store.scroll(None, 50).vectors, first(None, VECTORS))
    store.close()


def test_a_row_group_of_many_rows_is_read_in_flat_memory(tmp_path: Path) -> None:
    """150 MB of vectors in one row group, read by a process that grows by less than 75 MB."""
    rows, dim = 150_000, 256
    random = np.random.default_rng(0)
    schema = pa.schema([("id", pa.int64()), ("vector", pa.list_(pa.float32(), dim))])
    flat = pa.array(random.normal(size=rows * dim).astype(np.float32))
    vectors = pa.FixedSizeListArray.from_arrays(flat, dim)
    content = pa.table({"id": pa.array(range(rows)), "vector": vectors}, schema=schema)
    parquet.write_table(content, tmp_path / "large.parquet", row_group_size=rows)
    del content, vectors, flat
    code = """
        import resource, sys
        from app.stores.base import StoreLocation
        from app.stores.registry import open_store
        store = open_store(StoreLocation("files", sys.argv[1], "large.parquet"))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        cursor, count = None, 0
        while True:
            page = store.scroll(cursor, 1000)
            count += len(page.ids)
            cursor = page.cursor
            if cursor is None:
                break
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(count, (after - before) // 1024)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    count, grown_mb = map(int, answer.stdout.split())
    assert count == rows
    assert grown_mb < 75
