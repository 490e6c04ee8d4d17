"""Arrow in and out: which columns are read, what a body may cost, and how answers are written."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from flatbuffers import Builder
from pyarrow import ipc
from starlette.testclient import TestClient

from app.api.codecs import arrow
from app.errors import AnchorageError, BadArrow, BadColumn, EmptyVectors, TooManyVectors

ARROW = "application/vnd.apache.arrow.stream"
PAIR = {"source": "first", "target": "second", "anchor_set": "items"}
TRANSLATE = "/translate?source=first&target=second&anchor_set=items"
VECTORS = np.random.default_rng(5).normal(size=(6, 8)).astype(np.float32)
MAX_ROWS = 2_000
END = b"\xff\xff\xff\xff\0\0\0\0"


def fixed(array: np.ndarray) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(array.ravel()), array.shape[1])


def lists(array: Any, kind: pa.DataType | None = None) -> pa.Array:
    return pa.array(
        [None if row is None else list(row) for row in array], kind or pa.list_(pa.float32(), 8)
    )


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch(list(columns.values()), names=list(columns))


def written(*batches: pa.RecordBatch, schema: pa.Schema | None = None, **how: Any) -> bytes:
    sink = pa.BufferOutputStream()
    options = ipc.IpcWriteOptions(**how)
    with ipc.new_stream(sink, schema or batches[0].schema, options=options) as writer:
        for each in batches:
            writer.write_batch(each)
    return sink.getvalue().to_pybytes()


def read(data: bytes, max_rows: int = MAX_ROWS) -> np.ndarray:
    return arrow.read_vectors(memoryview(bytearray(data)), max_rows).numpy()


# --- vectors --------------------------------------------------------------------------------------

KINDS: dict[str, Callable[[np.ndarray], pa.Array]] = {
    "fixed": fixed,
    "lists": lambda array: lists(array, pa.list_(pa.from_numpy_dtype(array.dtype))),
    "large": lambda array: lists(array, pa.large_list(pa.from_numpy_dtype(array.dtype))),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_vectors_of_any_kind_of_list_are_read_over_several_batches(kind, dtype):
    array = VECTORS.astype(dtype)
    column = KINDS[kind](array)
    parts = [batch(v=column.slice(*span)) for span in ((0, 2), (2, 0), (2, 1), (3, 3))]
    found = read(written(*parts))
    assert found.dtype == array.dtype
    assert np.array_equal(found, array)


def test_one_batch_of_float32_is_read_without_a_copy():
    data = bytearray(written(batch(v=fixed(VECTORS))))
    found = arrow.read_vectors(memoryview(data), MAX_ROWS)
    start = np.frombuffer(data, np.uint8).ctypes.data
    assert start <= found.data_ptr() < start + len(data)


def test_lists_that_begin_anywhere_in_their_numbers_are_read():
    """Offsets that do not start at 0, and numbers that belong to no row."""
    numbers = pa.array(np.concatenate([[9, 9, 9], VECTORS.ravel(), [7]]).astype("f4"))
    offsets = pa.array([3 + 8 * row for row in range(7)], pa.int32())
    assert np.array_equal(
        read(written(batch(v=pa.ListArray.from_arrays(offsets, numbers)))), VECTORS
    )


def test_a_stream_without_its_end_mark_is_whole():
    assert len(read(written(batch(v=fixed(VECTORS))).removesuffix(END))) == 6


@pytest.mark.parametrize("ids", [pa.array(range(6)), pa.array(list("abcdef"), pa.large_string())])
def test_a_column_of_ids_is_passed_over(ids):
    assert np.array_equal(read(written(batch(id=ids, v=fixed(VECTORS)))), VECTORS)


# --- the list of what is allowed ------------------------------------------------------------------

GOOD = batch(v=lists(VECTORS))
WORDS = pa.array(list("abcabc"))

REFUSED_COLUMNS = {
    "two of vectors": batch(a=fixed(VECTORS), b=fixed(VECTORS)),
    "none of vectors": batch(a=WORDS),
    "two of ids": batch(v=fixed(VECTORS), a=WORDS, b=WORDS),
    "lists of whole numbers": batch(v=fixed(VECTORS.astype("i4"))),
    "lists of lists": batch(v=pa.array([[[1.0]]] * 6)),
    "a struct": batch(v=fixed(VECTORS), a=pa.array([{"x": 1}] * 6)),
    "nothing": batch(v=fixed(VECTORS), a=pa.nulls(6)),
    "a dictionary": batch(v=fixed(VECTORS), a=WORDS.dictionary_encode()),
    "a view": batch(v=fixed(VECTORS), a=WORDS.cast(pa.string_view())),
    "a list view": batch(v=pa.array(VECTORS.tolist(), pa.list_view(pa.float32()))),
    "an extension": batch(v=pa.FixedShapeTensorArray.from_numpy_ndarray(VECTORS)),
    "runs": batch(
        v=fixed(VECTORS), a=pa.RunEndEncodedArray.from_arrays(pa.array([6], pa.int32()), ["q"])
    ),
}


@pytest.mark.parametrize("name", REFUSED_COLUMNS)
def test_columns_that_are_not_on_the_list_are_refused_before_a_batch_is_read(name):
    schema = REFUSED_COLUMNS[name].schema
    head = ipc.read_message(written(schema=schema)).serialize().to_pybytes()
    for body in (written(REFUSED_COLUMNS[name]), head + b"no batch"):
        with pytest.raises(BadColumn):
            read(body)


def with_metadata(rows: pa.RecordBatch) -> bytes:
    """A stream whose message has metadata, which may name a compression too."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows, custom_metadata={"ARROW:experimental_compression": "zstd"})
    return bytes(sink.getvalue())


def frames(data: bytes) -> list[bytes]:
    """The messages of a stream."""
    source, found, start = pa.BufferReader(data), [], 0
    while data[start:] not in (b"", END):
        ipc.read_message(source)
        found.append(data[start : source.tell()])
        start = source.tell()
    return found


STREAM = written(GOOD, GOOD)
HELD = written(batch(v=lists(VECTORS), w=WORDS.dictionary_encode()))
NAMED = written(batch(vec1=fixed(VECTORS), name2=pa.array(range(6))))
LONG = pa.schema([GOOD.schema.field(0)], metadata={"about": "x" * arrow.METADATA_BYTES})
BROKEN = {
    "nothing": b"",
    "a byte": b"A",
    "json": b'{"vectors": [[1, 2]]}',
    "the old framing": written(GOOD, use_legacy_format=True),
    "lz4": written(GOOD, compression="lz4"),
    "zstd": written(GOOD, compression="zstd"),
    "metadata of a batch": with_metadata(GOOD),
    "no schema": frames(STREAM)[1] + END,
    "two schemas": frames(STREAM)[0] + STREAM,
    "a dictionary that no column uses": frames(STREAM)[0] + frames(HELD)[1] + END,
    "another schema's batch": frames(NAMED)[0] + frames(STREAM)[1] + END,
    "half a head": STREAM.removesuffix(END) + b"\xff\xff",
    "negative metadata": b"\xff\xff\xff\xff" + struct.pack("<i", -8) + STREAM[8:],
    "metadata of gigabytes": b"\xff\xff\xff\xff" + struct.pack("<i", 2**31 - 1) + STREAM[8:],
    "long metadata": written(schema=LONG),
    "short metadata": b"\xff\xff\xff\xff" + struct.pack("<i", 8) + STREAM[8:],
    "metadata of noughts": b"\xff\xff\xff\xff" + struct.pack("<i", 64) + b"\0" * 64,
    "a name that is not text": NAMED.replace(b"vec1", b"ve\xff1"),
    "text that is none": written(batch(v=fixed(VECTORS), w=pa.array(["abcdefgh"] * 6))).replace(
        b"abcdefgh", b"abc\xffefgh"
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_arrow_stream_is_refused(name):
    with pytest.raises(BadArrow):
        read(BROKEN[name])


def test_limits_of_rows_and_batches(monkeypatch):
    rows = batch(v=fixed(np.ones((4, 8), "f4")))
    with pytest.raises(TooManyVectors) as refused:
        read(written(rows, rows), max_rows=7)
    assert refused.value.limit == 7
    with pytest.raises(EmptyVectors):
        read(written(schema=GOOD.schema))
    monkeypatch.setattr(arrow, "MAX_BATCHES", 3)
    assert len(read(written(*[rows] * 3))) == 12
    with pytest.raises(BadArrow):
        read(written(*[rows.slice(0, 0)] * 4))


def test_a_body_whose_columns_share_their_bytes_is_refused():
    """Otherwise a body could stand for as many times its bytes as it has columns."""
    columns = {f"e{number}": fixed(np.ones((501, 7), "f4")) for number in range(16)}
    data = bytearray(written(batch(**columns)))
    length, padded = 14_028, 14_032
    begin = len(frames(bytes(data))[0]) + 8
    (size,) = struct.unpack_from("<i", data, begin - 4)
    shared = 0
    for place in range(begin, begin + size - 8, 4):
        if struct.unpack_from("<q", data, place)[0] == 16 * padded:  # the length of the body
            struct.pack_into("<q", data, place, padded)
        elif struct.unpack_from("<q", data, place)[0] == length:  # after a buffer's offset
            struct.pack_into("<q", data, place - 8, 0)
            shared += 1
    assert shared == 16
    del data[begin + size + padded : -len(END)]
    with pytest.raises(BadArrow, match="overlap"):
        arrow.read_items(bytes(data), MAX_ROWS)


def shared_names(size: int, fields: int) -> bytes:
    """A schema whose fields have 3 children each, and all of them one name of `size` bytes."""
    builder = Builder(1024)
    name = builder.CreateString("x" * size)

    def table(slots: int, *values: tuple[str, int, int]) -> int:
        builder.StartObject(slots)
        for kind, slot, value in values:
            getattr(builder, f"Prepend{kind}Slot")(slot, value, 0)
        return builder.EndObject()

    def vector(items: list[int]) -> int:
        builder.StartVector(4, len(items), 4)
        for each in items:
            builder.PrependUOffsetTRelative(each)
        return builder.EndVector()

    def field(kind: int, type_: int, children: list[int]) -> int:
        parts = vector(children)
        references = (("UOffsetTRelative", 0, name), ("UOffsetTRelative", 3, type_))
        return table(7, *references, ("Uint8", 2, kind), ("UOffsetTRelative", 5, parts))

    child = field(3, table(1, ("Int16", 0, 1)), [])
    parent = field(13, table(0), [child] * 3)
    content = table(4, ("UOffsetTRelative", 1, vector([parent] * fields)))
    header = (("Int16", 0, 4), ("Uint8", 1, 1), ("UOffsetTRelative", 2, content))
    builder.Finish(table(5, *header))
    metadata = bytes(builder.Output())
    metadata += b"\0" * (-len(metadata) % 8)
    return struct.pack("<ii", -1, len(metadata)) + metadata


def test_a_schema_whose_fields_share_one_name_costs_little():
    before = pa.total_allocated_bytes()
    with pytest.raises(AnchorageError):
        read(shared_names(3_000, 900))
    assert pa.total_allocated_bytes() == before
    with pytest.raises(BadArrow):
        read(shared_names(arrow.METADATA_BYTES, 900))


def test_damaged_arrow_is_read_or_refused_and_never_fails():
    seeds = [
        (
            arrow.read_vectors,
            written(batch(id=WORDS, v=lists(VECTORS)), batch(id=WORDS, v=lists(VECTORS))),
        ),
        (arrow.read_vectors, written(batch(v=lists(VECTORS, pa.list_(pa.float64()))))),
        (arrow.read_items, written(batch(input=WORDS, a=fixed(VECTORS), b=fixed(VECTORS)))),
    ]
    source = random.Random(5)
    for _ in range(500):
        reader, seed = source.choice(seeds)
        body = bytearray(seed)
        for _ in range(source.choice((1, 1, 2, 5))):
            place = source.randrange(len(body))
            match source.randrange(5):
                case 0 | 1:
                    body[place] ^= 1 << source.randrange(8)
                case 2:
                    strange = (b"\xff" * 8, b"\0" * 8, struct.pack("<q", 2**62))
                    body[place : place + 8] = source.choice(strange)
                case 3:
                    del body[place : place + source.choice((1, 8, 64, len(body) - 8))]
                case _:
                    other = source.randrange(len(body))
                    body[place : place + 16] = body[other : other + 16]
        with suppress(AnchorageError):
            reader(memoryview(body), MAX_ROWS)


# --- wrong rows -----------------------------------------------------------------------------------


def changed(rows: dict[int, Any], kind: pa.DataType | None = None) -> pa.RecordBatch:
    return batch(v=lists([rows.get(row, VECTORS[row]) for row in range(6)], kind))


VARIABLE = pa.list_(pa.float32())
WRONG_ROWS = {
    "null vectors": ([GOOD, changed({1: None, 4: None})], "bad-column", [7, 10]),
    "null numbers": (
        [GOOD, changed({2: [None] * 8, 5: [*VECTORS[0][:7], None]})],
        "bad-column",
        [8, 11],
    ),
    "no number": ([GOOD, changed({2: [np.nan] * 8})], "non-finite", [8]),
    "ragged": (
        [changed({}, VARIABLE), changed({2: [1.0], 3: []}, VARIABLE)],
        "ragged-rows",
        [8, 9],
    ),
    "ragged batches": (
        [changed({}, VARIABLE), changed(dict.fromkeys(range(6), (1.0,)), VARIABLE)],
        "ragged-rows",
        None,
    ),
    "too short": ([batch(v=fixed(VECTORS[:, :7]))], "dimension-mismatch", None),
    "empty lists": (
        [changed(dict.fromkeys(range(6), ()), VARIABLE)],
        "empty-vectors",
        None,
    ),
    "no rows": ([GOOD.slice(0, 0)], "empty-vectors", None),
}


@pytest.fixture(scope="module")
def service(stock: Callable[..., TestClient], parallel: dict[str, np.ndarray]) -> TestClient:
    """The running service with two encoders, their parallel anchors and a classifier."""
    head = {"encoder": "second", "classes": ["no", "yes"], "weight": [[1] * 6, [-1] * 6]}
    return stock(parallel, heads={"sign": head})


def send(client: TestClient, body: bytes, path: str = TRANSLATE, **headers: str) -> Any:
    return client.post(path, content=body, headers={"content-type": ARROW, **headers})


@pytest.mark.parametrize("name", WRONG_ROWS)
def test_wrong_rows_are_named_across_batches(service, refused, name):
    batches, code, rows = WRONG_ROWS[name]
    refused(send(service, written(*batches)), 422, code, "vectors", rows)


# --- answers --------------------------------------------------------------------------------------


def answered(answer: Any) -> pa.Table:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == ARROW
    table = ipc.open_stream(answer.content).read_all()
    table.validate(full=True)
    return table


def matrix(table: pa.Table, name: str = "vector") -> np.ndarray:
    return table.column(name).combine_chunks().flatten().to_numpy().reshape(len(table), -1)


def test_an_answer_has_its_own_columns_and_describes_itself_in_metadata(service):
    body = written(batch(id=WORDS, mine=fixed(VECTORS)))
    table = answered(send(service, body))
    assert table.schema.names == ["vector", "anchorage_flag"]
    assert table.schema.metadata[b"anchorage.method"] == b"graded"
    assert b"decode_power" in table.schema.metadata[b"anchorage.options"]
    json = service.post("/translate", json={**PAIR, "vectors": VECTORS.astype("f8").tolist()})
    np.testing.assert_allclose(matrix(table), json.json()["vectors"], rtol=1e-5, atol=1e-5)
    half = matrix(answered(send(service, body, TRANSLATE + "&dtype=float16")))
    assert np.array_equal(half, matrix(table).astype(np.float16))


def test_flags_are_a_column():
    flags = [{"row": 1, "code": "equals-anchor-mean"}, {"row": 1, "code": "outside-anchors"}]
    assert arrow.flags_array(3, flags).to_pylist() == [None, "outside-anchors", None]
    assert arrow.flags_array(2, []).to_pylist() == [None, None]


def test_a_written_stream_repeats_the_numbers_without_a_copy():
    vectors = torch.from_numpy(VECTORS.copy())
    parts = arrow.write({"vector": arrow.vectors_array(vectors)}, {"method": "graded"})
    table = ipc.open_stream(b"".join(parts)).read_all()
    assert np.array_equal(matrix(table), VECTORS)
    addresses = [np.frombuffer(part, np.uint8).ctypes.data for part in parts if len(part)]
    assert vectors.data_ptr() in addresses


def test_the_items_of_a_set_are_columns_of_vectors_and_texts():
    columns = {"input": WORDS, "role": pa.array(["query"] * 6), "old": fixed(VECTORS)}
    fields = arrow.read_items(written(batch(**columns, new=fixed(-VECTORS))), MAX_ROWS)
    assert fields["inputs"] == list("abcabc")
    assert fields["roles"] == ["query"] * 6
    assert list(fields["embeddings"]) == ["old", "new"]
    assert np.array_equal(fields["embeddings"]["new"].numpy(), -VECTORS)
    for wrong in (
        batch(**columns, other=WORDS),
        batch(input=pa.array(["a"] * 5 + [None]), old=fixed(VECTORS)),
        pa.record_batch([fixed(VECTORS)] * 2, names=["old", "old"]),
    ):
        with pytest.raises(BadColumn):
            arrow.read_items(written(wrong), MAX_ROWS)
