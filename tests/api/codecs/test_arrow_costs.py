"""Arrow bodies that stand for more than they hold cost only in proportion to their bytes.

The messages are written here by hand: no Arrow library writes them.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from flatbuffers import Builder
from pyarrow import ipc
from starlette.testclient import TestClient

from app.api.codecs import arrow, arrow_answers, arrow_messages
from app.api.codecs.arrow_messages import DICTIONARY, MOST_FIELDS, MOST_METADATA_BYTES
from app.api.http import body_reading
from app.errors import BadArrow

ARROW = "application/vnd.apache.arrow.stream"
TRANSLATE = "/translate?source=first&target=second&anchor_set=items"
#: kinds of types, as Schema.fbs numbers them, and the width of the prepended integers
NULL, INT, FLOAT, UTF8, TIMESTAMP, LIST, STRUCT, FIXED, STRING_VIEW = 1, 2, 3, 5, 10, 12, 13, 16, 24
TEXT = "é".encode()  # checked eight times slower than ASCII


class Metadata:
    """Writes the flatbuffer of one message; any number of references can share a part."""

    def __init__(self) -> None:
        self.builder = Builder(1024)
        self.text = self.builder.CreateString

    def table(self, **fields: tuple[str, int]) -> int:
        """A table; `_3=("Int64", 5)` is its field 3."""
        self.builder.StartObject(8)
        for name, (kind, value) in fields.items():
            getattr(self.builder, f"Prepend{kind}Slot")(int(name[1:]), value, 0)
        return self.builder.EndObject()

    def offsets(self, items: Sequence[int]) -> tuple[str, int]:
        self.builder.StartVector(4, len(items), 4)
        for each in reversed(items):
            self.builder.PrependUOffsetTRelative(each)
        return refer(self.builder.EndVector())

    def pairs(self, items: Sequence[tuple[int, int]]) -> tuple[str, int]:
        """A vector of structs of two numbers: nodes, buffers."""
        self.builder.StartVector(16, len(items), 8)
        for pair in reversed(items):
            self.builder.Prep(8, 16)
            self.builder.PrependInt64(pair[1])
            self.builder.PrependInt64(pair[0])
        return refer(self.builder.EndVector())

    def entries(self, count: int, size: int) -> tuple[str, int]:
        """Metadata: one entry, referred to `count` times."""
        entry = self.table(_0=refer(self.text("k")), _1=refer(self.text("v" * size)))
        return self.offsets([entry] * count)

    def type(self, number: int, **fields: tuple[str, int]) -> dict[str, Any]:
        return {"_2": ("Uint8", number), "_3": refer(self.table(**fields))}

    def field(
        self, name: int, kind: dict[str, Any], children: Sequence[int] = (), **more: tuple[str, int]
    ) -> int:
        return self.table(_0=refer(name), _5=self.offsets(children), **kind, **more)

    def vector(self) -> int:
        """The column of vectors, of one number each."""
        item = self.field(self.text("item"), self.type(FLOAT, _0=("Int16", 1)))
        return self.field(self.text("vector"), self.type(FIXED, _0=("Int32", 1)), [item])

    def dictionary(self, number: int) -> dict[str, Any]:
        """What a field of words refers to a dictionary by, with indices of eight bits."""
        index = self.table(_0=("Int32", 8), _1=("Bool", 1))
        return {"_4": refer(self.table(_0=("Int64", number), _1=refer(index)))}

    def message(
        self,
        kind: int,
        body: bytes = b"",
        entries: tuple[str, int] | None = None,
        **header: tuple[str, int],
    ) -> bytes:
        content = self.table(**header)
        body += b"\0" * (-len(body) % 8)
        more = {} if entries is None else {"_4": entries}
        fields = {
            "_0": ("Int16", 4),
            "_1": ("Uint8", kind),
            "_2": refer(content),
            "_3": ("Int64", len(body)),
        }
        self.builder.Finish(self.table(**fields, **more))
        metadata = bytes(self.builder.Output())
        metadata += b"\0" * (-len(metadata) % 8)
        return b"\xff\xff\xff\xff" + struct.pack("<i", len(metadata)) + metadata + body


def refer(place: int) -> tuple[str, int]:
    return "UOffsetTRelative", place


def schema(
    make: Callable[[Metadata], Sequence[int]], entries: tuple[int, int] | None = None
) -> bytes:
    """A schema of the column of vectors and of the fields that `make` adds."""
    metadata = Metadata()
    about = {} if entries is None else {"_2": metadata.entries(*entries)}
    return metadata.message(
        arrow_messages.SCHEMA, _1=metadata.offsets([metadata.vector(), *make(metadata)]), **about
    )


def rows(
    count: int,
    nodes: Sequence[tuple[int, int]] = (),
    buffers: Sequence[tuple[int, int]] = (),
    body: bytes = b"\0" * 8,
    entries: tuple[int, int] | None = None,
) -> bytes:
    """A record batch of `count` vectors, and of the nodes and buffers of the other fields."""
    metadata = Metadata()
    about = None if entries is None else metadata.entries(*entries)
    every, spans = (
        [(count, 0), (count, 0), *nodes],
        [(0, 0), (0, 0), (0, 4 * min(count, 2)), *buffers],
    )
    return metadata.message(
        arrow_messages.BATCH,
        body,
        about,
        _0=("Int64", count),
        _1=metadata.pairs(every),
        _2=metadata.pairs(spans),
    )


def words(number: int, size: int, *, adds: bool = False) -> bytes:
    """A dictionary of one word."""
    metadata = Metadata()
    buffers = metadata.pairs([(0, 0), (0, 8), (8, size)])
    batch = metadata.table(_0=("Int64", 1), _1=metadata.pairs([(1, 0)]), _2=buffers)
    body = struct.pack("<ii", 0, size) + ((TEXT * size)[:size] if size > 1 else b"a")
    return metadata.message(
        DICTIONARY, body, _0=("Int64", number), _1=refer(batch), _2=("Bool", int(adds))
    )


def encoded(metadata: Metadata, number: int) -> int:
    return metadata.field(
        metadata.text(f"w{number}"), metadata.type(UTF8), **metadata.dictionary(number)
    )


def nothing(metadata: Metadata) -> Sequence[int]:
    return []


# --- the bodies -----------------------------------------------------------------------------------


def views(kind: pa.DataType, wrap: Callable[[pa.Array], pa.Array] = lambda array: array) -> bytes:
    """Six rows that each hold the same megabyte."""
    view = struct.pack("<i4sii", 2**20, b"aaaa", 0, 0)
    column = wrap(
        pa.Array.from_buffers(kind, 6, [None, pa.py_buffer(view * 6), pa.py_buffer(b"a" * 2**20)])
    )
    return as_stream(column)


def as_stream(column: pa.Array) -> bytes:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.ones(len(column), "f4")), 1)
    batch = pa.record_batch([vectors, column], names=["vector", "other"])
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def list_views() -> pa.Array:
    numbers = pa.array(np.zeros(1000, "i1"))
    return pa.ListViewArray.from_arrays(
        pa.array([0] * 6, pa.int32()), pa.array([1000] * 6, pa.int32()), numbers
    )


def one_buffer_for_many(columns: int = 100) -> bytes:
    """32 MB that were answered as 32 GB, with a thousand columns."""
    begin = schema(
        lambda metadata: [
            metadata.field(metadata.text(""), metadata.type(UTF8)) for _ in range(columns)
        ]
    )
    body = struct.pack("<fi", 1, 0) + struct.pack("<ii", 0, 1000) + b"a" * 1000
    return begin + rows(1, [(1, 0)] * columns, [(0, 0), (8, 8), (16, 1000)] * columns, body)


def one_dictionary_for_many(columns: int = 100, size: int = 2**20) -> bytes:
    begin = schema(lambda metadata: [encoded(metadata, 7) for _ in range(columns)])
    spans = [span for column in range(columns) for span in ((0, 0), (8 * column, 1))]
    return begin + words(7, size) + rows(1, [(1, 0)] * columns, spans, b"\0" * 8 * columns)


def two_encoded(metadata: Metadata) -> Sequence[int]:
    return [
        metadata.field(
            metadata.text(""), metadata.type(STRUCT), [encoded(metadata, 7), encoded(metadata, 8)]
        )
    ]


ENCODED = [(1, 0)], [(0, 0), (8, 1)], b"\0" * 16
TWO_ENCODED = [(1, 0)] * 3, [(0, 0), (0, 0), (8, 1), (0, 0), (16, 1)], b"\0" * 24


def growing(batches: int = 50, size: int = 2**20) -> bytes:
    """A dictionary that grows by a byte before each batch: 20 MB took 6.5 GB of memory."""
    begin = schema(lambda metadata: [encoded(metadata, 7)]) + words(7, size) + rows(1, *ENCODED)
    return begin + (words(7, 1, adds=True) + rows(1, *ENCODED)) * batches


def replaced_beside_a_large_one(batches: int = 50, size: int = 2**20) -> bytes:
    begin = schema(two_encoded) + words(7, size) + words(8, 1) + rows(1, *TWO_ENCODED)
    return begin + (words(8, 1) + rows(1, *TWO_ENCODED)) * batches


def one_name_for_many(metadata: Metadata) -> Sequence[int]:
    name = metadata.text("n" * (MOST_METADATA_BYTES // 2))
    return [metadata.field(name, metadata.type(NULL)) for _ in range(3)]


def one_timezone_for_many(metadata: Metadata) -> Sequence[int]:
    zone = metadata.type(
        TIMESTAMP, _0=("Int16", 2), _1=refer(metadata.text("n" * (MOST_METADATA_BYTES // 2)))
    )
    return [metadata.field(metadata.text(""), zone) for _ in range(3)]


def one_field_for_many(metadata: Metadata) -> Sequence[int]:
    """A struct of 20 times the same struct of 20 times the same struct of 20 fields."""
    node = metadata.field(metadata.text(""), metadata.type(NULL))
    for _ in range(3):
        node = metadata.field(metadata.text(""), metadata.type(STRUCT), [node] * 20)
    return [node]


def entries_of_a_field(metadata: Metadata) -> Sequence[int]:
    return [
        metadata.field(metadata.text(""), metadata.type(NULL), _6=metadata.entries(10_000, 100_000))
    ]


def many_fields(metadata: Metadata) -> Sequence[int]:
    leaf = metadata.type(NULL)
    return [
        metadata.field(
            metadata.text(""),
            metadata.type(STRUCT),
            [metadata.field(metadata.text(""), leaf)] * MOST_FIELDS,
        )
    ]


BAD, MANY = (400, "bad-arrow"), (413, "too-many-vectors")
BODIES: dict[str, tuple[Callable[[], bytes], tuple[int, str]]] = {
    "views of one text": (lambda: views(pa.string_view()), BAD),
    "views of one binary": (lambda: views(pa.binary_view()), BAD),
    "nested views": (
        lambda: views(pa.string_view(), lambda each: pa.StructArray.from_arrays([each], ["x"])),
        BAD,
    ),
    "a dictionary of views": (lambda: views(pa.string_view(), lambda each: indices_of(each)), BAD),
    "an extension of views": (
        lambda: views(
            pa.string_view(), lambda each: pa.ExtensionArray.from_storage(json_views(), each)
        ),
        BAD,
    ),
    "views of one list": (lambda: as_stream(list_views()), BAD),
    "one buffer for many columns": (one_buffer_for_many, BAD),
    "one dictionary for many columns": (one_dictionary_for_many, BAD),
    "a growing dictionary": (growing, BAD),
    "a dictionary that is replaced next to a large one": (replaced_beside_a_large_one, BAD),
    "a dictionary of no column": (lambda: schema(nothing) + words(9, 1) + rows(1), BAD),
    "one name for many columns": (lambda: schema(one_name_for_many), BAD),
    "one time zone for many columns": (lambda: schema(one_timezone_for_many), BAD),
    "one field for many": (lambda: schema(one_field_for_many), BAD),
    "many fields": (lambda: schema(many_fields), BAD),
    "one entry of the schema's metadata for many": (
        lambda: schema(nothing, (10_000, 100_000)),
        BAD,
    ),
    "one entry of a field's metadata for many": (lambda: schema(entries_of_a_field), BAD),
    "one entry of a batch's metadata for many": (
        lambda: schema(nothing) + rows(1, entries=(10_000, 100_000)),
        BAD,
    ),
    "rows of nothing": (lambda: schema(null) + rows(2**60, [(2**60, 2**60)]), MANY),
    "negative rows": (lambda: schema(nothing) + rows(-1), BAD),
    "buffers of negative length": (
        lambda: schema(null) + rows(1, [(1, 1)], [(0, -(2**40)), (0, 2**40)]),
        BAD,
    ),
    "a schema that is repeated": (lambda: schema(nothing) * 2 + rows(1), BAD),
    "a batch before its schema": (lambda: rows(1) + schema(nothing), BAD),
}

#: those that are found out after a batch
LATER = {"a growing dictionary", "a dictionary that is replaced next to a large one"}


def null(metadata: Metadata) -> Sequence[int]:
    return [metadata.field(metadata.text(""), metadata.type(NULL))]


def indices_of(dictionary: pa.Array) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([0] * 6, pa.int8()), dictionary, safe=False)


def json_views() -> pa.DataType:
    return pa.json_(pa.string_view())


@pytest.fixture(scope="module")
def service(stock: Callable[..., TestClient], parallel: dict[str, np.ndarray]) -> TestClient:
    """The running service with encoders of one number and of six, and their parallel anchors."""
    return stock({"first": parallel["first"][:, :1], "second": parallel["second"]})


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("path", [TRANSLATE, TRANSLATE + "&stream=true"], ids=["whole", "stream"])
def test_what_would_cost_more_than_its_bytes_is_refused(service, refused, monkeypatch, path, name):
    monkeypatch.setattr(body_reading, "DISCARD_S", 0.1)
    make, (status, code) = BODIES[name]
    begun, body = time.process_time(), make()
    building = time.process_time() - begun
    answer = service.post(path, content=body + arrow_messages.END, headers={"content-type": ARROW})
    if "stream" in path and name in LATER:
        assert not answer.content.endswith(arrow_messages.END), "the answer breaks off"
    else:
        refused(answer, status, code, "vectors")
    assert time.process_time() - begun - building < 1


def test_the_messages_written_here_are_arrow():
    """The test's own writer is correct: the bodies above are refused for their contents."""
    whole = (
        schema(two_encoded, (3, 5))
        + words(7, 6)
        + words(8, 6)
        + rows(1, *TWO_ENCODED, entries=(3, 5))
        + arrow_messages.END
    )
    for read in (
        ipc.open_stream(whole).read_all().to_batches(),
        arrow.read(whole, None, 9).batches,
    ):
        assert [batch.column(1).to_pylist() for batch in read] == [[{"w7": "ééé", "w8": "ééé"}]]
    found = arrow.read(schema(null) + rows(2, [(2, 2)]) + arrow_messages.END, None, 9)
    assert (found.vectors.tolist(), found.batches[0].column(1).to_pylist()) == (
        [[0], [0]],
        [None, None],
    )


def test_a_dictionary_is_checked_once_and_not_for_each_batch():
    """21 MB took 25 seconds."""
    one = schema(lambda metadata: [encoded(metadata, 7)]) + words(7, 8 * 2**20)
    body = one + rows(1, *ENCODED) * 2000 + arrow_messages.END
    begun = time.process_time()
    assert len(arrow.read(body, None, 2000).batches) == 2000
    assert time.process_time() - begun < 1.5, "at 3 GB a second it took 5"


def test_dictionaries_are_counted_as_large_as_they_are():
    reader, parts = (
        arrow.Reader(lambda schema: arrow.vector_column(schema, None), 10**6),
        [schema(two_encoded), words(7, 600), words(8, 60), rows(1, *TWO_ENCODED)],
    )
    for part in [*parts, words(8, 40, adds=True), words(7, 6), rows(1, *TWO_ENCODED)]:
        reader.add(arrow_messages.next_frame(part, 0), memoryview(part))
    assert reader.dictionaries.held == len(words(8, 60)) + len(words(8, 40, adds=True)) + len(
        words(7, 6)
    )


def test_a_dictionary_that_is_no_text_is_refused_whenever_it_comes():
    begin = schema(lambda metadata: [encoded(metadata, 7)]) + words(7, 6) + rows(1, *ENCODED)
    good, bad = words(7, 6), words(7, 6).replace(TEXT, b"\xc3\xc3")
    assert (
        len(arrow.read(begin + good + rows(1, *ENCODED) + arrow_messages.END, None, 9).batches) == 2
    )
    with pytest.raises(BadArrow):
        arrow.read(begin + bad + rows(1, *ENCODED) + arrow_messages.END, None, 9)


def test_many_columns_in_many_batches_are_for_streams(service, refused):
    """60 MB took 7 seconds and a gigabyte."""
    columns = 900
    leaves = schema(
        lambda metadata: [metadata.field(metadata.text(""), metadata.type(NULL))] * columns
    )
    body = leaves + rows(1, [(1, 1)] * columns) * 160 + arrow_messages.END
    answer = service.post(TRANSLATE, content=body, headers={"content-type": ARROW})
    refused(answer, 400, "bad-arrow", "vectors", detail="stream=true")
    assert (
        service.post(
            TRANSLATE + "&stream=true", content=body, headers={"content-type": ARROW}
        ).status_code
        == 200
    )


def test_a_client_that_sends_only_dictionaries_fills_no_memory(service, refused):
    """Each dictionary replaces the one before, but pyarrow kept all that it had not read."""
    begin = schema(lambda metadata: [encoded(metadata, 7)])
    body = begin + words(7, 2**19) * 40 + rows(1, *ENCODED)
    answer = service.post(TRANSLATE + "&stream=true", content=body, headers={"content-type": ARROW})
    refused(answer, 413, "body-too-large", "vectors")


def test_one_copy_of_a_body_is_what_passes_through_and_goes_back():
    """The answer's other columns are the body's own memory."""
    body = memoryview(bytearray(as_stream(pa.array(["x" * 10_000] * 100))))
    found = arrow.read(body, None, 100)
    parts = arrow_answers.write(found, {"vector": arrow_answers.vectors_array(found.vectors)}, {})
    assert sum(map(len, parts)) < len(body) + 4096
    [text] = [part for part in parts if len(part) == 1_000_000]
    whole = np.frombuffer(body, np.uint8)
    assert 0 <= np.frombuffer(text, np.uint8).ctypes.data - whole.ctypes.data < len(whole)
