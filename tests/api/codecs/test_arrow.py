"""Arrow in and out: vectors of every kind, columns that pass through, and what is refused."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import ipc
from starlette.testclient import TestClient

from app.api.codecs import arrow, arrow_messages

JSON, NPY, ARROW = "application/json", "application/x-npy", "application/vnd.apache.arrow.stream"
PAIR = {"source": "first", "target": "second", "anchor_set": "items"}
TRANSLATE = "/translate?source=first&target=second&anchor_set=items"
VECTORS = np.random.default_rng(5).normal(size=(6, 8)).astype(np.float32)
#: an answer as a whole, and one batch by batch
BOTH = pytest.mark.parametrize(
    "path", [TRANSLATE, TRANSLATE + "&stream=true"], ids=["whole", "stream"]
)


@pytest.fixture(scope="module")
def service(stock: Callable[..., TestClient], parallel: dict[str, np.ndarray]) -> TestClient:
    """The running service with two encoders, their parallel anchors and a classifier."""
    return stock(
        parallel,
        heads={
            "sign": {"encoder": "second", "classes": ["no", "yes"], "weight": [[1] * 6, [-1] * 6]}
        },
    )


def fixed(array: np.ndarray) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(array.ravel()), array.shape[1])


def lists(array: np.ndarray, kind: pa.DataType | None = None) -> pa.Array:
    return pa.array(
        [None if row is None else list(row) for row in array], kind or pa.list_(pa.float32(), 8)
    )


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch(list(columns.values()), names=list(columns))


def written(*batches: pa.RecordBatch, schema: pa.Schema | None = None, **how: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with ipc.new_stream(
        sink, schema or batches[0].schema, options=ipc.IpcWriteOptions(**how)
    ) as writer:
        for each in batches:
            writer.write_batch(each)
    return sink.getvalue().to_pybytes()


def send(
    client: TestClient, body: bytes, path: str = TRANSLATE, media: str = ARROW, **headers: str
) -> Any:
    return client.post(path, content=body, headers={"content-type": media, **headers})


def read(answer: Any) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == ARROW
    with ipc.open_stream(answer.content) as reader:
        batches = list(reader)
        for each in batches:
            each.validate(full=True)
        return reader.schema, batches


def matrix(batches: list[pa.RecordBatch], name: str = "vector") -> np.ndarray:
    """A column of vectors of all batches."""
    return np.vstack(
        [each.column(name).flatten().to_numpy().reshape(each.num_rows, -1) for each in batches]
    )


def truth(client: TestClient, vectors: np.ndarray, **more: Any) -> np.ndarray:
    """What the service answers in JSON."""
    answer = client.post(
        "/translate", json={**PAIR, "vectors": vectors.astype("f8").tolist(), **more}
    )
    assert answer.status_code == 200, answer.text
    return np.array(answer.json()["vectors"])


# --- vectors --------------------------------------------------------------------------------------

FLOATS = {"float16": pa.float16(), "float32": pa.float32(), "float64": pa.float64()}
KINDS = {
    "fixed": fixed,
    "lists": lambda array: lists(array, pa.list_(pa.from_numpy_dtype(array.dtype))),
    "large": lambda array: lists(array, pa.large_list(pa.from_numpy_dtype(array.dtype))),
    "tensors": lambda array: pa.FixedShapeTensorArray.from_numpy_ndarray(
        np.ascontiguousarray(array)
    ),
    "named item": lambda array: fixed(array).cast(
        pa.list_(pa.field("x", pa.from_numpy_dtype(array.dtype)), 8)
    ),
}


@BOTH
@pytest.mark.parametrize("kind", KINDS)
def test_vectors_of_any_kind_are_answered_as_their_numbers_in_json_are(service, path, kind):
    for dtype in FLOATS:
        array = VECTORS.astype(dtype)
        column = KINDS[kind](array)
        body = written(
            *(batch(vector=column.slice(*span)) for span in ((0, 2), (2, 1), (3, 3)))
        )  # slices of one array
        schema, batches = read(send(service, body, path))
        assert schema.field("vector").type == pa.list_(pa.float32(), 6)
        assert [each.num_rows for each in batches] == [2, 1, 3]
        np.testing.assert_allclose(matrix(batches), truth(service, array), rtol=1e-5, atol=1e-5)
        assert all(each.column("anchorage_flag").null_count == each.num_rows for each in batches)
        half = matrix(read(send(service, body, path + "&dtype=float16"))[1])
        assert half.dtype == np.float16
        assert np.array_equal(half, matrix(batches).astype(np.float16))


@BOTH
def test_lists_that_begin_anywhere_in_their_numbers_are_read(service, path):
    """Offsets that do not start at 0, and numbers that belong to no row."""
    numbers = pa.array(np.concatenate([[9, 9, 9], VECTORS.ravel(), [7]]).astype("f4"))
    column = pa.ListArray.from_arrays(
        pa.array([3 + 8 * row for row in range(7)], pa.int32()), numbers
    )
    np.testing.assert_allclose(
        matrix(read(send(service, written(batch(vector=column)), path))[1]),
        truth(service, VECTORS),
        rtol=1e-5,
    )


@BOTH
def test_batches_without_rows_are_left_out(service, path):
    full, empty = batch(vector=lists(VECTORS)), batch(vector=lists(VECTORS[:0]))
    _, batches = read(send(service, written(empty, full, empty, empty, full, empty), path))
    assert [each.num_rows for each in batches] == [6, 6]


def test_a_set_takes_another_encoders_embeddings_as_arrow(service, refused):
    path = "/anchor-sets/more/embeddings/second"
    anchors, vectors = (
        np.random.default_rng(1).normal(size=(20, 8)),
        np.random.default_rng(2).normal(size=(20, 6)),
    )

    def put(body: bytes, query: str = "") -> Any:
        return service.put(path + query, content=body, headers={"content-type": ARROW})

    assert (
        service.post(
            "/anchor-sets", json={"name": "more", "embeddings": {"first": anchors.tolist()}}
        ).status_code
        == 201
    )
    body = written(
        batch(a=fixed(vectors[:12]), b=fixed(-vectors[:12])),
        batch(a=fixed(vectors[12:]), b=fixed(-vectors[12:])),
    )
    refused(put(body), 422, "bad-column", "column", detail="`a`, `b`")
    refused(put(body[:-30], "?column=b"), 400, "bad-arrow", "vectors")
    assert put(body, "?column=b").status_code == 201
    asked = written(batch(v=fixed(-vectors)))
    itself = matrix(read(send(service, asked, "/relative?encoder=second&anchor_set=more"))[1], "v")
    np.testing.assert_allclose(np.diag(itself), 1, atol=1e-4)  # row i is anchor i
    assert service.delete("/anchor-sets/more").status_code == 204


# --- what passes through --------------------------------------------------------------------------


def nested(depth: int) -> pa.Array:
    column = pa.array(range(6))
    for _ in range(depth):
        column = pa.StructArray.from_arrays([column], names=["x"])
    return column


def others() -> dict[str, pa.Array]:
    """Columns of every kind, with nulls."""
    rows = range(6)
    words = pa.array([("a", "b", None, "é")[row % 4] for row in rows])
    return {
        "id": pa.array(rows, pa.int64()),
        "big": pa.array([2**64 - 1 - row for row in rows], pa.uint64()),
        "text": words,
        "large": words.cast(pa.large_string()),
        "binary": pa.array([None if row == 1 else b"\0\xff" * row for row in rows]),
        "category": words.dictionary_encode(),
        "ordered": pa.DictionaryArray.from_arrays(
            pa.array([row % 2 for row in rows], pa.int8()), pa.array([10, 20]), ordered=True
        ),
        "nested": pa.array(
            [None if row == 2 else {"a": row, "b": ["x"] * row, "c": {"d": None}} for row in rows]
        ),
        "nested category": pa.StructArray.from_arrays([words.dictionary_encode()], names=["word"]),
        "map": pa.array([[("k", row)] for row in rows], pa.map_(pa.string(), pa.int32())),
        "when": pa.array(rows, pa.timestamp("us", tz="Europe/Berlin")),
        "span": pa.array(rows, pa.duration("us")),
        "price": pa.array([None, *range(5)], pa.decimal128(10, 2)),
        "nothing": pa.nulls(6),
        "yes": pa.array([None if row % 3 == 0 else row % 2 == 0 for row in rows]),
        "whole": pa.array([[row] for row in rows], pa.list_(pa.int32(), 1)),
        "union": pa.UnionArray.from_sparse(
            pa.array([row % 2 for row in rows], pa.int8()), [pa.array(rows), words]
        ),
        "runs": pa.RunEndEncodedArray.from_arrays(
            pa.array([1, 6], pa.int32()), pa.array(["q", "r"])
        ),
        "deep": nested(60),
        "uuid": pa.ExtensionArray.from_storage(
            pa.uuid(), pa.array([bytes([row] * 16) for row in rows], pa.binary(16))
        ),
    }


def fielded(columns: dict[str, pa.Array]) -> pa.Schema:
    """A schema that says more than names and types."""
    fields = [
        pa.field(name, each.type, nullable=name != "id", metadata={"about": name})
        for name, each in columns.items()
    ]
    unknown = pa.field(
        "point",
        pa.int32(),
        metadata={"ARROW:extension:name": "my.point", "ARROW:extension:metadata": "{}"},
    )
    return pa.schema(
        [*fields, unknown], metadata={"mine": "yes", b"\xff\0": b"\xfe", "anchorage.method": "mine"}
    )


@BOTH
def test_other_columns_come_back_as_they_were(service, path):
    columns = others()
    at = 3
    columns = {
        **dict(list(columns.items())[:at]),
        "vector": lists(VECTORS),
        **dict(list(columns.items())[at:]),
    }
    schema = fielded(columns)
    whole = pa.record_batch([*columns.values(), pa.array(range(6), pa.int32())], schema=schema)
    sent = [whole, whole.slice(1, 4), whole.slice(5), whole]
    found, batches = read(send(service, written(*sent), path))
    assert found.names == [*schema.names, "anchorage_flag"]
    assert found.metadata[b"mine"] == b"yes"
    assert found.metadata[b"\xff\0"] == b"\xfe"
    assert found.metadata[b"anchorage.method"] == b"graded"
    assert found.metadata[b"anchorage.translator"].startswith(b"tr_")
    assert b"decode_power" in found.metadata[b"anchorage.options"]
    for place, field in enumerate(schema):
        if field.name != "vector":
            assert found.field(place).equals(field, check_metadata=True)
            for before, after in zip(sent, batches, strict=True):
                assert after.column(place).to_pylist() == before.column(place).to_pylist(), (
                    field.name
                )
    np.testing.assert_allclose(matrix(batches[:1]), matrix(batches[3:]), rtol=1e-5)


def test_other_columns_come_back_whole_too_when_a_head_answers(service):
    body = written(batch(id=pa.array(list("abcdef")), vector=fixed(VECTORS), n=pa.array(range(6))))
    schema, [found] = read(send(service, body, "/stitch?encoder=first&anchor_set=items&head=sign"))
    assert schema.names == ["id", "scores", "n", "label", "anchorage_flag"]
    assert found.column("id").to_pylist() == list("abcdef")
    assert set(found.column("label").to_pylist()) <= {"no", "yes"}
    np.testing.assert_allclose(matrix([found], "scores").sum(axis=1), 1, rtol=1e-5)


@BOTH
@pytest.mark.parametrize("deltas", [True, False])
def test_dictionaries_that_grow_or_are_replaced_are_followed(service, path, deltas):
    words = [["a"] * 6, list("ababab"), list("abcabc"), list("xyzxyz"), list("xyzxyz"), ["a"] * 6]
    sent = [batch(vector=fixed(VECTORS), word=pa.array(each).dictionary_encode()) for each in words]
    _, batches = read(send(service, written(*sent, emit_dictionary_deltas=deltas), path))
    assert [each.column("word").to_pylist() for each in batches] == words


@BOTH
def test_rows_that_are_not_what_one_would_expect_are_flagged_in_a_column(service, path):
    embeddings = {"first": np.eye(8)[:4].tolist(), "second": np.eye(6)[:4].tolist()}
    assert (
        service.post("/anchor-sets", json={"name": "plane", "embeddings": embeddings}).status_code
        == 201
    )
    rows = np.vstack(
        [np.eye(8)[0], np.eye(8)[:4].mean(axis=0), np.eye(8)[:4].mean(axis=0) + np.eye(8)[7]]
    ).astype("f4")
    answer = send(
        service,
        written(batch(v=fixed(rows)), batch(v=fixed(rows[1:]))),
        path.replace("items", "plane"),
    )
    flags = [each.column("anchorage_flag").to_pylist() for each in read(answer)[1]]
    assert flags == [
        [None, "equals-anchor-mean", "outside-anchors"],
        ["equals-anchor-mean", "outside-anchors"],
    ]
    assert "anchorage-flags" not in answer.headers
    service.delete("/anchor-sets/plane")


# --- which column ---------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("name", ["vector", "vectors", "label", "embedding é", ""])
def test_the_column_of_vectors_keeps_its_name_and_place(service, path, name):
    schema, _ = read(
        send(
            service,
            written(batch(a=pa.array(range(6)), **{name: fixed(VECTORS)}, z=pa.array(range(6)))),
            path,
        )
    )
    assert schema.names == ["a", name, "z", "anchorage_flag"]


@BOTH
def test_a_column_is_chosen_by_its_name_by_being_alone_or_by_being_called_vector(service, path):
    two = written(
        batch(
            a=fixed(VECTORS),
            vector=fixed(-VECTORS),
            tags=pa.array([["x"]] * 6),
            counts=pa.array([[1]] * 6),
        )
    )
    found = matrix(read(send(service, two, path))[1])
    np.testing.assert_allclose(found, truth(service, -VECTORS), rtol=1e-5, atol=1e-5)
    _, batches = read(send(service, two, path + "&column=a"))
    np.testing.assert_allclose(matrix(batches, "a"), truth(service, VECTORS), rtol=1e-5, atol=1e-5)
    assert np.array_equal(matrix(batches, "vector"), -VECTORS)


TWO = batch(a=fixed(VECTORS), b=fixed(VECTORS), c=pa.array(range(6)), d=pa.array([[1]] * 6))


@BOTH
@pytest.mark.parametrize(
    ("body", "column", "code", "field"),
    [
        (written(TWO), None, "bad-column", "column"),
        (written(TWO), "e", "bad-column", "column"),
        (written(TWO), "", "bad-column", "column"),
        (written(TWO), "c", "bad-dtype", "column"),
        (written(TWO), "d", "bad-dtype", "column"),
        (written(TWO), "%ED%A0%80%00", "bad-column", "column"),
        (written(TWO), "a&column=b", "invalid-request", "column"),
        (written(batch(c=pa.array(range(6)))), None, "bad-column", "column"),
        (
            written(pa.record_batch([TWO.column(0)] * 2, names=["a", "a"])),
            "a",
            "bad-column",
            "column",
        ),
        (
            written(pa.record_batch([TWO.column(0)] * 2, names=["vector"] * 2)),
            None,
            "bad-column",
            "column",
        ),
        (
            written(batch(a=fixed(VECTORS), anchorage_flag=pa.array(range(6)))),
            None,
            "bad-column",
            "vectors",
        ),
        (
            written(batch(anchorage_flag=fixed(VECTORS), a=pa.array(range(6)))),
            None,
            "bad-column",
            "vectors",
        ),
    ],
)
def test_a_column_that_is_none_or_not_clear_is_refused(
    service, refused, path, body, column, code, field
):
    refused(
        send(service, body, path if column is None else f"{path}&column={column}"), 422, code, field
    )


def test_names_of_a_heads_answer_may_not_be_taken(service, refused):
    for name in ("label", "scores", "anchorage_flag"):
        body = written(batch(v=fixed(VECTORS), **{name: pa.array(range(6))}))
        answer = send(service, body, "/stitch?encoder=first&anchor_set=items&head=sign")
        refused(answer, 422, "bad-column", "vectors", detail=name)
        answer = send(
            service, body, "/stitch?encoder=first&anchor_set=items&head=sign", accept=JSON
        )
        assert answer.status_code == 200


# --- what is wrong --------------------------------------------------------------------------------

GOOD = batch(v=lists(VECTORS))


def nulled(rows: dict[int, Any]) -> pa.RecordBatch:
    return batch(v=lists([rows.get(row, VECTORS[row]) for row in range(6)]))


def ragged(rows: dict[int, Any]) -> pa.RecordBatch:
    return batch(v=lists([rows.get(row, VECTORS[row]) for row in range(6)], pa.list_(pa.float32())))


WRONG_ROWS = {
    "null vectors": ([GOOD, nulled({1: None, 4: None})], "bad-column", [7, 10]),
    "null numbers": (
        [GOOD, nulled({2: [None] * 8, 5: [*VECTORS[0][:7], None]})],
        "bad-column",
        [8, 11],
    ),
    "no number": (
        [GOOD, nulled({2: [np.nan] * 8}), nulled({0: [*VECTORS[0][:7], np.inf]})],
        "non-finite",
        [8, 12],
    ),
    "too large": ([GOOD, nulled({3: [3e38] * 8})], "value-out-of-range", [9]),
    "ragged": ([ragged({}), ragged({2: [1.0], 3: []})], "ragged-rows", [8, 9]),
    "null among lists": ([ragged({}), ragged({5: None})], "bad-column", [11]),
    "too short": ([batch(v=fixed(VECTORS[:, :7]))], "dimension-mismatch", None),
    "empty lists": ([ragged({row: [] for row in range(6)})], "empty-vectors", None),
    "of no length": (
        [batch(v=pa.array([[]] * 6, pa.list_(pa.float32(), 0)))],
        "empty-vectors",
        None,
    ),
    "no rows": ([GOOD.slice(0, 0)], "empty-vectors", None),
}


@BOTH
@pytest.mark.parametrize("name", WRONG_ROWS)
def test_wrong_rows_are_named_across_batches(service, refused, path, name):
    batches, code, rows = WRONG_ROWS[name]
    if "stream" in path and name == "no number":
        rows = rows[:1]  # of the first batch that has any
    refused(send(service, written(*batches), path), 422, code, "vectors", rows)


def test_batches_of_vectors_of_different_lengths_are_refused(service, refused):
    body = written(ragged({}), ragged({row: [1.0] for row in range(6)}))
    refused(send(service, body), 422, "ragged-rows", "vectors")
    refused(send(service, body, TRANSLATE + "&stream=true"), 422, "dimension-mismatch", "vectors")


def filed(*batches: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with ipc.new_file(sink, batches[0].schema) as writer:
        for each in batches:
            writer.write_batch(each)
    return sink.getvalue().to_pybytes()


def frames(data: bytes) -> list[bytes]:
    """The messages of a stream."""
    found, start = [], 0
    while (frame := arrow_messages.next_frame(data, start)) is not None:
        found.append(data[start : frame.end])
        start = frame.end
    return found


STREAM = written(GOOD, GOOD)
WORDS = written(batch(v=lists(VECTORS), w=pa.array(list("abcabc")).dictionary_encode()))
NAMED = written(batch(vec1=fixed(VECTORS), name2=pa.array(range(6))))
BROKEN = {
    "a byte": b"A",
    "text": b"hello, this is no Arrow",
    "json": b'{"vectors": [[1, 2]]}',
    "a file": filed(GOOD),
    "the old framing": written(GOOD, use_legacy_format=True),
    "lz4": written(GOOD, compression="lz4"),
    "zstd": written(GOOD, compression="zstd"),
    "a compressed dictionary": written(
        batch(v=lists(VECTORS), w=pa.array(["a" * 99] * 6).dictionary_encode()), compression="zstd"
    ),
    "no schema": b"".join(frames(STREAM)[1:]),
    "two schemas": frames(STREAM)[0] + STREAM,
    "another schema later": frames(STREAM)[0] + frames(STREAM)[1] + NAMED,
    "no dictionary": b"".join(frame for place, frame in enumerate(frames(WORDS)) if place != 1),
    "half a head": STREAM.removesuffix(arrow_messages.END) + b"\xff\xff",
    "negative metadata": b"\xff\xff\xff\xff" + struct.pack("<i", -8) + STREAM[8:],
    "metadata of gigabytes": b"\xff\xff\xff\xff" + struct.pack("<i", 2**31 - 1) + STREAM[8:],
    "metadata that is too long": b"\xff\xff\xff\xff"
    + struct.pack("<i", 2**20 + 8)
    + b"\0" * (2**20 + 8),
    "metadata that is too short": b"\xff\xff\xff\xff" + struct.pack("<i", 8) + STREAM[8:],
    "metadata of noughts": b"\xff\xff\xff\xff" + struct.pack("<i", 64) + b"\0" * 64,
    "metadata of ones": b"\xff\xff\xff\xff" + struct.pack("<i", 64) + b"\xff" * 64,
    "a name that is not text": NAMED.replace(b"vec1", b"ve\xff1"),
    "another name that is not text": NAMED.replace(b"name2", b"nam\xff2"),
    "text that is none": written(batch(v=lists(VECTORS), w=pa.array(["abcdefgh"] * 6))).replace(
        b"abcdefgh", b"abc\xffefgh"
    ),
    "deep nesting": written(
        schema=pa.schema([GOOD.schema.field(0), pa.field("w", nested(200).type)])
    ),
    "a thousand columns": written(
        batch(v=lists(VECTORS), **{f"c{place}": pa.nulls(6) for place in range(1100)})
    ),
}


@BOTH
@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_arrow_stream_is_refused(service, refused, path, name):
    if name in (
        "half a head",
        "another schema later",
        "deep nesting",
    ):  # a stream looks at these once rows come, or went out
        path = TRANSLATE
    refused(send(service, BROKEN[name], path), 400, "bad-arrow", "vectors")


def test_nothing_is_refused_as_nothing(service, refused):
    refused(send(service, b""), 400, "bad-arrow", "vectors")
    refused(send(service, b"", TRANSLATE + "&stream=true"), 422, "empty-vectors", "vectors")
    for path in (TRANSLATE, TRANSLATE + "&stream=true"):
        refused(send(service, written(schema=GOOD.schema), path), 422, "empty-vectors", "vectors")


def test_a_stream_without_its_end_mark_is_whole(service):
    assert len(read(send(service, STREAM.removesuffix(arrow_messages.END)))[1]) == 2


def test_a_stream_cut_anywhere_is_refused_or_shorter(service):
    whole = matrix(read(send(service, STREAM))[1], "v")
    for end in range(0, len(STREAM) - 8, 37):
        answer = send(service, STREAM[:end])
        if answer.status_code == 200:  # between two messages
            assert np.array_equal(matrix(read(answer)[1], "v"), whole[:6])
        else:
            assert (answer.status_code, answer.json()["code"]) in {
                (400, "bad-arrow"),
                (422, "empty-vectors"),
            }


def test_thousands_of_batches_are_for_streams(service, refused):
    body = written(*[GOOD.slice(0, 0)] * arrow.MOST_MESSAGES)
    refused(send(service, body), 400, "bad-arrow", "vectors", detail="stream=true")
    few = written(*[GOOD.slice(0, 1)] * 200)
    for path in (TRANSLATE, TRANSLATE + "&stream=true"):
        assert len(read(send(service, few, path))[1]) == 200


def test_more_rows_than_allowed_are_refused_and_the_limit_named(service, refused):
    rows = batch(v=fixed(np.ones((1000, 8), "f2")))
    assert send(service, written(rows, rows)).status_code == 200
    problem = refused(
        send(service, written(rows, rows, GOOD.cast(rows.schema))),
        413,
        "too-many-vectors",
        "vectors",
    )
    assert problem["limit"] == 2000


def test_damaged_arrow_is_answered_or_refused_and_never_fails(service):
    columns = others()
    rich = pa.record_batch([lists(VECTORS), *columns.values()], names=["vector", *columns])
    seeds = [written(rich, rich.slice(2)), WORDS, STREAM, written(ragged({}))]
    source = random.Random(5)
    for _ in range(250):
        body = bytearray(source.choice(seeds))
        for _ in range(source.choice((1, 1, 2, 5))):
            place = source.randrange(len(body))
            match source.randrange(6):
                case 0 | 1:
                    body[place] ^= 1 << source.randrange(8)
                case 2:
                    body[place : place + 8] = source.choice(
                        (b"\xff" * 8, b"\0" * 8, struct.pack("<q", 2**62))
                    )
                case 3:
                    del body[place : place + source.choice((1, 8, 64, len(body) - 8))]
                case 4:
                    body[place:place] = bytes(source.choices(range(256), k=8))
                case _:
                    other = source.randrange(len(body))
                    body[place : place + 16] = body[other : other + 16]
        path = TRANSLATE + source.choice(
            ("", "", "&stream=true", "&column=vector", "&column=category")
        )
        answer = send(service, bytes(body), path)
        assert answer.status_code < 500, answer.text
        if answer.status_code == 200:
            if "stream" not in path:  # a stream may have broken off
                read(answer)
        else:
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["code"]
