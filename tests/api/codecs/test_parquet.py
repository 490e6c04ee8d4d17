"""Parquet bodies and answers."""

from __future__ import annotations

import io
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet as pq

from app.api.codecs import media_types, parquet
from app.api.http import answers
from app.errors import (
    AnchorageError,
    BadColumn,
    BadParquet,
    BodyTooLarge,
    Overloaded,
    TooManyVectors,
)

PARQUET = media_types.PARQUET
ROWS = np.random.default_rng(3).normal(size=(6, 3)).astype(np.float32)
MOST_BYTES = 2**20


def vectors(rows, kind=None):
    rows = np.asarray(rows)
    kind = kind or pa.list_(pa.from_numpy_dtype(rows.dtype), rows.shape[1])
    return pa.array(rows.tolist(), kind)


def table(rows=ROWS, **more):
    ids = [f"id {row}" for row in range(len(rows))]
    return pa.table({"id": ids, "vector": vectors(rows), **more})


def written(what, **options):
    sink = io.BytesIO()
    pq.write_table(what, sink, **options)
    return sink.getvalue()


def read(data, column=None, most_rows=1_000, most_bytes=MOST_BYTES, reserve=lambda size: None):
    return parquet.read(memoryview(bytearray(data)), column, most_rows, most_bytes, reserve)


# --- good files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "zstd", "data_page_version": "2.0"},
        {"compression": "gzip", "row_group_size": 2},
        {"compression": "none", "use_dictionary": False, "data_page_size": 1},
        {"compression": "brotli", "store_schema": False},
        {"use_dictionary": False, "use_byte_stream_split": ["vector.list.element"]},
    ],
)
def test_files_of_every_writer_are_read_exactly(dtype, options):
    if options.get("use_byte_stream_split") and dtype is np.float16:
        options = {}
    rows = read(written(table(ROWS.astype(dtype), n=list(range(6))), **options))
    assert rows.vectors.numpy().dtype == dtype
    np.testing.assert_array_equal(rows.vectors.numpy(), ROWS.astype(dtype))
    others = pa.Table.from_batches(rows.batches)
    assert others.column("id").to_pylist() == [f"id {row}" for row in range(6)]
    assert others.column("n").to_pylist() == list(range(6))


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float32())])
def test_lists_of_one_length_are_vectors(kind):
    what = pa.table({"v": vectors(ROWS, kind)})
    np.testing.assert_array_equal(read(written(what)).vectors.numpy(), ROWS)


def test_other_columns_come_back_as_they_were():
    more = {
        "word": pa.array(["x", None, "x", "y", "y", "x"]).dictionary_encode(),
        "bytes": pa.array([b"\xff", b"", None, b"1", b"2", b"3"]),
        "large": pa.array(["ü"] * 6, pa.large_string()),
        "when": pa.array([1, 2, None, 4, 5, 6], pa.timestamp("ms", tz="UTC")),
        "yes": pa.array([True, None, False] * 2),
        "nested": pa.array([{"a": [1, 2], "b": None}] * 6),
    }
    what = table(**more)
    rows = read(written(what, row_group_size=4))
    data = b"".join(parquet.write(rows, {"vector": vectors(2 * ROWS)}, {"method": "ridge"}))
    found = pq.read_table(io.BytesIO(data))
    expected = what.set_column(1, "vector", vectors(2 * ROWS))
    for name in expected.column_names:
        assert found.column(name).to_pylist() == expected.column(name).to_pylist(), name
    assert found.schema.field("large").type == pa.large_string()
    assert found.schema.metadata[b"anchorage.method"] == b"ridge"


@pytest.mark.parametrize("seed", range(6))
def test_what_is_written_is_read(seed):
    draw = np.random.default_rng(seed)
    count, dim, group, page = draw.integers(1, [40, 9, 50, 400]).tolist()
    numbers = draw.normal(size=(count, dim)).astype(np.float32)
    texts = ["".join(map(chr, draw.integers(1, 0xD000, size=row % 9))) for row in range(count)]
    data = written(
        pa.table({"v": vectors(numbers), "t": texts}),
        compression=["none", "snappy", "zstd", "lz4", "gzip", "brotli"][seed],
        row_group_size=group,
        data_page_size=page,
        data_page_version=["1.0", "2.0"][seed % 2],
    )
    rows = read(data)
    np.testing.assert_array_equal(rows.vectors.numpy(), numbers)
    assert [text for batch in rows.batches for text in batch.column(1).to_pylist()] == texts


# --- hostile files --------------------------------------------------------------------------------


def refuse(error, data, match, **more):
    with pytest.raises(error, match=match) as raised:
        read(data, **more)
    return raised.value


@pytest.mark.parametrize("options", [{"use_dictionary": False}, {"compression": "gzip"}])
def test_a_file_that_stands_for_more_than_the_limit_is_refused(options):
    zeros = np.zeros((500, 1_000), np.float32)
    data = written(pa.table({"v": vectors(zeros)}), **{"compression": "zstd", **options})
    assert len(data) < 20_000
    assert refuse(BodyTooLarge, data, "unpacked").limit == MOST_BYTES
    assert len(read(data, most_bytes=2**22).vectors) == 500


def test_a_text_that_every_row_repeats_is_counted_each_time():
    """A dictionary of one text stands for a thousand of them."""
    what = table(np.ones((1_000, 2), np.float32)).append_column(
        "t", pa.array(["x" * 2**16] * 1_000)
    )
    data = written(what)
    assert len(data) < 2**15
    assert refuse(BodyTooLarge, data, "unpacked").limit == MOST_BYTES


def test_the_memory_of_the_table_is_reserved():
    class Full(Exception):
        pass

    reserved = []

    def reserve(size):
        reserved.append(size)
        raise Full

    with pytest.raises(Full):
        read(written(table()), reserve=reserve)
    assert reserved[0] > ROWS.nbytes


def test_memory_is_reserved_before_the_table_arrives_and_its_process_ends():
    data = written(pa.table({"v": vectors(np.zeros((900, 1_000), np.float32))}))
    reserved = []

    def reserve(size):
        reserved.append(size)
        if len(reserved) == 2:
            raise Overloaded("full")

    with pytest.raises(Overloaded, match="full"):
        read(data, most_bytes=2**22, reserve=reserve)
    assert reserved == [parquet.CHUNK_BYTES] * 2


def test_a_refusal_follows_the_warnings_of_libraries():
    refusal = b'{"code": "too-many-vectors", "detail": "Split it.", "limit": 5}'
    error = parquet.read_refusal(b"UserWarning: old\nversion\n" + refusal)
    assert (type(error), error.detail, error.limit) == (TooManyVectors, "Split it.", 5)
    for unclear in (b"", b"Segmentation fault", b"3", b"[]", b"{}"):
        assert type(parquet.read_refusal(unclear)) is BadParquet


def test_a_small_answer_with_the_columns_of_a_client_is_written_in_a_thread():
    few = torch.zeros(1, 1)
    assert not answers.Writer(PARQUET, rows=read(written(table()))).is_small(few)
    assert answers.Writer(PARQUET).is_small(few)


def test_too_many_rows_are_refused_by_the_metadata():
    error = refuse(TooManyVectors, written(table()), "more than 5", most_rows=5)
    assert error.limit == 5


@pytest.mark.parametrize(
    ("what", "error", "match", "rows"),
    [
        (pa.table({"v": pa.array([[1.0, 2.0], None])}), BadColumn, "null in 1 rows", [1]),
        (pa.table({"v": pa.array([[1.0, 2.0], [1.0, None]])}), BadColumn, "null in place", [1]),
        (pa.table({"v": pa.array([[1.0, 2.0], [1.0]])}), AnchorageError, "lengths", [1]),
        (pa.table({"v": pa.array([[1, 2]])}), BadColumn, "No column", []),
        (pa.table({"v": pa.array([[[1.0]]])}), BadColumn, "No column", []),
        (pa.table({"n": [1.0]}), BadColumn, "No column", []),
        (pa.table({"v": pa.array([], pa.list_(pa.float32(), 2))}), AnchorageError, "no rows", []),
        (pa.table({"a": [[1.0]], "b": [[1.0]]}), BadColumn, "Several columns", []),
    ],
)
def test_tables_without_clear_vectors_are_refused(what, error, match, rows):
    assert refuse(error, written(what), match).rows == rows


@pytest.mark.parametrize(
    "data", [b"", b"PAR1", b"PAR1PAR1", b"PAR1" + b"\0" * 20 + b"PAR1", b"PARE" * 9, b"{}" * 40]
)
def test_what_is_no_file_is_refused(data):
    refuse(BadParquet, data, "Parquet")


def test_damage_that_ends_the_process_of_pyarrow_is_only_an_error():
    """One bit of some bytes makes pyarrow abort: the test looks for such a byte in a child."""
    data = written(table(ROWS[:3]))
    script = (
        "import sys, pyarrow.parquet as pq, pyarrow as pa\n"
        "data = sys.stdin.buffer.read()\n"
        "for place in range(len(data)):\n"
        "    print(place, flush=True)\n"
        "    damaged = bytearray(data)\n"
        "    damaged[place] ^= 1\n"
        "    try:\n"
        "        file = pq.ParquetFile(pa.BufferReader(bytes(damaged)))\n"
        "        groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))\n"
        "        [group.column(place) for group in groups for place in (0, 1)]\n"
        "        list(file.iter_batches(use_threads=False))\n"
        "    except Exception:\n"
        "        pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], input=data, capture_output=True, check=False
    )
    worst = int(done.stdout.split()[-1])
    for place in {worst, *np.random.default_rng(0).integers(0, len(data), 5).tolist()}:
        damaged = bytearray(data)
        damaged[place] ^= 1
        with suppress(AnchorageError):
            assert read(damaged).vectors.numel() < 2**10


# --- over HTTP ------------------------------------------------------------------------------------


@pytest.fixture
def filled(client):
    """Encoders `a` (3) and `b` (2), and their set `s`."""
    draw = np.random.default_rng(0)
    for name, dim in (("a", 3), ("b", 2)):
        client.post("/encoders", json={"name": name, "dim": dim})
    embeddings = {name: draw.normal(size=(30, dim)).tolist() for name, dim in (("a", 3), ("b", 2))}
    client.post("/anchor-sets", json={"name": "s", "embeddings": embeddings})
    return client


def translate(client, data, media=PARQUET, query="", **headers):
    return client.post(
        f"/translate?source=a&target=b&anchor_set=s&method=ridge{query}",
        content=data,
        headers={"Content-Type": media, **headers},
    )


def test_a_translated_file_has_the_vectors_of_json_and_the_other_columns(filled):
    body = {"source": "a", "target": "b", "anchor_set": "s", "method": "ridge"}
    expected = filled.post("/translate", json={**body, "vectors": ROWS.tolist()}).json()
    answer = translate(filled, written(table()), query="&confidence=true")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == PARQUET
    found = pq.read_table(io.BytesIO(answer.content))
    assert found.column_names[:2] == ["id", "vector"]
    assert found.column("id").to_pylist() == [f"id {row}" for row in range(6)]
    np.testing.assert_allclose(found.column("vector").to_pylist(), expected["vectors"], rtol=1e-5)
    assert found.schema.metadata[b"anchorage.translator"] == expected["translator"].encode()
    assert {"anchorage_cosine", "anchorage_p_value", "anchorage_flag"} <= set(found.column_names)


@pytest.mark.parametrize("accept", ["application/json", media_types.ARROW, media_types.NPY])
def test_a_file_is_answered_in_every_format(filled, accept):
    answer = translate(filled, written(table()), Accept=accept)
    assert (answer.status_code, answer.headers["content-type"]) == (200, accept)


def test_json_is_answered_as_a_file(filled):
    body = {"encoder": "a", "anchor_set": "s", "vectors": ROWS.tolist()}
    answer = filled.post("/relative", json=body, headers={"Accept": PARQUET})
    found = pq.read_table(io.BytesIO(answer.content))
    assert (found.num_rows, len(found.column("vector")[0])) == (6, 30)


def test_errors_of_files_are_problems(filled, refused):
    wrong = ROWS.copy()
    wrong[[1, 4]] = np.nan
    answer = translate(filled, written(table(wrong)))
    refused(answer, 422, "non-finite", "vectors", rows=[1, 4])
    refused(translate(filled, b"no file"), 400, "bad-parquet", "vectors")
    refused(translate(filled, written(table()), query="&column=z"), 422, "bad-column", "column")
    answer = translate(filled, written(table()), query="&stream=true")
    assert answer.json()["code"] == "unsupported-media-type"
    big = written(pa.table({"v": vectors(np.zeros((1_900, 1_000), np.float32))}))
    refused(translate(filled, big), 413, "body-too-large", "vectors")


def embeddings_table(count, seed, **more):
    draw = np.random.default_rng(seed)
    made = {name: vectors(draw.normal(size=(count, dim))) for name, dim in (("a", 3), ("b", 2))}
    return pa.table({**made, **more})


def as_arrow(what):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, what.schema) as writer:
        for batch in what.to_batches(max_chunksize=4):
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(("media", "write"), [(PARQUET, written), (media_types.ARROW, as_arrow)])
def test_a_set_is_created_and_grows_by_tables_as_by_json(filled, media, write):
    """Translators have the same id, however their anchors were sent."""
    roles = ["query", "document"] * 5
    headers = {"Content-Type": media}
    first, more = embeddings_table(10, 1, role=roles), embeddings_table(7, 2, role=roles[:7])
    made = filled.post("/anchor-sets?name=t", content=write(first), headers=headers)
    assert made.status_code == 201, made.text
    grown = filled.post("/anchor-sets/t/items", content=write(more), headers=headers)
    assert grown.status_code == 201, grown.text
    assert (grown.json()["size"], grown.json()["roles"]) == (17, roles + roles[:7])
    whole = {name: first[name].to_pylist() + more[name].to_pylist() for name in "ab"}
    filled.post("/anchor-sets", json={"name": "json", "embeddings": whole})
    ids = [
        filled.post(
            "/translators",
            json={"source": "a", "target": "b", "anchor_set": name, "method": "ridge"},
        ).json()["id"]
        for name in ("t", "json")
    ]
    assert ids[0] == ids[1]


def test_a_set_of_one_encoder_is_created_and_grows_by_npy(filled):
    def npy(rows):
        file = io.BytesIO()
        np.save(file, rows)
        return file.getvalue()

    headers = {"Content-Type": media_types.NPY}
    made = filled.post("/anchor-sets?name=n&encoder=a", content=npy(ROWS), headers=headers)
    assert (made.status_code, made.json()["encoders"]) == (201, ["a"])
    grown = filled.post("/anchor-sets/n/items?encoder=a", content=npy(ROWS[:2]), headers=headers)
    assert grown.json()["size"] == 8
    alone = filled.post("/anchor-sets/s/items?encoder=a", content=npy(ROWS), headers=headers)
    assert alone.json()["code"] == "missing-field"
    unnamed = filled.post("/anchor-sets?name=m", content=npy(ROWS), headers=headers)
    assert (unnamed.status_code, unnamed.json()["field"]) == (422, "encoder")


@pytest.mark.parametrize(("media", "write"), [(PARQUET, written), (media_types.ARROW, as_arrow)])
def test_tables_that_are_no_items_are_refused_with_their_column_and_rows(
    filled, refused, media, write
):
    def create(what):
        return filled.post(
            "/anchor-sets?name=x", content=write(what), headers={"Content-Type": media}
        )

    refused(create(embeddings_table(3, 0, id=["x"] * 3)), 422, "bad-column", "column")
    answer = create(embeddings_table(3, 0, role=["query", None, "document"]))
    refused(answer, 422, "bad-column", "roles", rows=[1])
    answer = create(pa.table({"a": pa.array([[1.0, 2.0, 3.0], [1.0, 2.0, float("nan")]])}))
    refused(answer, 422, "non-finite", "embeddings.a", rows=[1])
    unknown = create(pa.table({"nobody": pa.array([[1.0, 2.0]])}))
    refused(unknown, 404, "encoder-not-found", "embeddings.nobody")
    assert filled.get("/anchor-sets/x").status_code == 404
