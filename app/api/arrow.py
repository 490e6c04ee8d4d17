"""Arrow's IPC stream: record batches of vectors and whatever else the client keeps beside them, which passes through untouched.

The framing is read here before pyarrow sees a byte: sizes are bounded before anything is held, and compressed buffers, which may
unpack to any size, are refused.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from flatbuffers import number_types, table
from flatbuffers.encode import Get
from pyarrow import ipc
from torch import Tensor

from app.api import npy
from app.errors import BadArrow, BadColumn, BadDtype, EmptyVectors, RaggedRows

MEDIA = "application/vnd.apache.arrow.stream"

#: the column of vectors, unless the request names another or there is only one of lists of floats
VECTOR = "vector"
#: the column that an answer adds: why a row is not what one would expect
FLAG = "anchorage_flag"

#: bytes that say what follows, and of one message's description: of a schema, mostly
FRAME_BYTES, MOST_METADATA_BYTES = 8, 2**20
#: batches of one body that is answered as a whole, and columns
MOST_BATCHES, MOST_COLUMNS = 4_096, 1_024

#: kinds of messages
SCHEMA, DICTIONARY, BATCH = 1, 2, 3
END = b"\xff\xff\xff\xff\0\0\0\0"


@dataclass(frozen=True)
class Frame:
    """One message's place in a stream. kind 0: its end; of a dictionary, its id, and whether it adds to the one before."""

    kind: int
    start: int
    end: int
    dictionary: int = 0
    adds: bool = False


@dataclass(frozen=True)
class Rows:
    """The batches of a body, and their vectors in one matrix."""

    vectors: Tensor
    batches: Sequence[pa.RecordBatch]
    schema: pa.Schema
    #: the vectors' place among the columns
    place: int


@dataclass
class Sink(io.RawIOBase):
    """Keeps what is written as the buffers it comes in: nothing is copied."""

    parts: list[Any] = field(default_factory=list)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.parts.append(memoryview(data))
        return len(data)


def metadata_size(head: bytes) -> int:
    """The length of a message's description, from the bytes before it. Raises BadArrow."""
    mark, size = struct.unpack("<ii", head) if len(head) == FRAME_BYTES else (0, 0)
    if mark != -1 or not 0 <= size <= MOST_METADATA_BYTES:
        raise BadArrow("this is no Arrow IPC stream: a message does not begin as one", field="vectors")
    return int(size)


def next_frame(data: bytes | bytearray | memoryview, start: int) -> Frame | None:
    """The message that begins at `start`, or None if more bytes are needed to tell its length. Raises BadArrow."""
    head = bytes(data[start : start + FRAME_BYTES])
    if len(head) < FRAME_BYTES:
        return None
    size = metadata_size(head)
    start_of_body = start + FRAME_BYTES + size
    if size == 0:
        return Frame(0, start, start_of_body)
    metadata = bytes(data[start + FRAME_BYTES : start_of_body])
    if len(metadata) < size:
        return None
    kind, length, dictionary, adds = _describe(metadata)
    return Frame(kind, start, start_of_body + length, dictionary, adds)


def _describe(metadata: bytes) -> tuple[int, int, int, bool]:
    """A message's kind, the length of its body, and a dictionary's id and whether it adds, from its flatbuffer (Message.fbs).

    Raises BadArrow.
    """
    dictionary, adds = 0, False
    try:
        message = table.Table(metadata, Get(number_types.UOffsetTFlags.packer_type, metadata, 0))
        kind = _scalar(message, 1, number_types.Uint8Flags)
        length = _scalar(message, 3, number_types.Int64Flags)
        content = _child(message, 2)
        batch = content
        if kind == DICTIONARY and content is not None:
            batch = _child(content, 1)
            dictionary = _scalar(content, 0, number_types.Int64Flags)
            adds = bool(_scalar(content, 2, number_types.Uint8Flags))
        packed = kind in (DICTIONARY, BATCH) and batch is not None and batch.Offset(_slot(3)) != 0
    except (struct.error, IndexError, ValueError, TypeError) as error:
        raise BadArrow(f"a message's description cannot be read: {str(error)[:100]}", field="vectors") from None
    if kind not in (SCHEMA, DICTIONARY, BATCH) or length < 0:
        raise BadArrow("a stream holds a schema, dictionaries and record batches, nothing else", field="vectors")
    if packed:
        raise BadArrow("compressed record batches are not read: write them without compression", field="vectors")
    return kind, length, dictionary, adds


def _slot(number: int) -> int:
    """Where a flatbuffer's table says where its field of that number is."""
    return 4 + 2 * number


def _scalar(of: table.Table, number: int, flags: Any) -> int:
    place = of.Offset(_slot(number))
    return int(of.Get(flags, place + of.Pos)) if place else 0


def _child(of: table.Table, number: int) -> table.Table | None:
    place = of.Offset(_slot(number))
    return table.Table(of.Bytes, of.Indirect(of.Pos + place)) if place else None


def read(data: bytes | memoryview, column: str | None) -> Rows:
    """The vectors of a whole stream where they lie, and its batches.

    Raises BadArrow, BadColumn, BadDtype, EmptyVectors, RaggedRows.
    """
    _check_frames(data)
    schema, batches = _decode(data)
    place = vector_column(schema, column)
    batches = [batch for batch in batches if batch.num_rows]
    if not batches:
        raise EmptyVectors("expected at least one row", field="vectors")
    parts, start = [], 0
    for batch in batches:
        parts.append(matrix(batch, place, data, start))
        start += batch.num_rows
    if len({part.shape[1] for part in parts}) > 1:
        raise RaggedRows("batches of vectors of different lengths", field="vectors")
    return Rows(parts[0] if len(parts) == 1 else torch.cat(parts), batches, schema, place)


def _check_frames(data: bytes | memoryview) -> None:
    start = count = 0
    while start < len(data):
        frame = next_frame(data, start)
        if frame is None or frame.end > len(data):
            raise BadArrow("the stream ends within a message", field="vectors")
        if frame.kind == 0:
            break
        start, count = frame.end, count + 1
        if count > MOST_BATCHES:
            raise BadArrow(f"more than {MOST_BATCHES} messages: send larger record batches, or stream=true", field="vectors")


def _decode(data: bytes | memoryview) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """Raises BadArrow, also for what only reads as Arrow: offsets that lead elsewhere, text that is no UTF-8."""
    try:
        with ipc.open_stream(pa.py_buffer(data)) as reader:
            schema, batches = reader.schema, list(reader)
        if len(schema) > MOST_COLUMNS:
            raise BadArrow(f"more than {MOST_COLUMNS} columns", field="vectors")
        for batch in batches:
            batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, TypeError, MemoryError, OverflowError) as error:
        if isinstance(error, BadArrow):
            raise
        raise BadArrow(f"this is no Arrow IPC stream: {_first_line(error)}", field="vectors") from None
    return schema, batches


class Beginning:
    """What each batch of a stream is read with: the schema, and the dictionaries as they are by then."""

    def __init__(self) -> None:
        self._schema = b""
        self._dictionaries: dict[int, bytes] = {}

    def add(self, frame: Frame, message: bytes) -> None:
        """A message that is no batch."""
        if frame.kind == SCHEMA:
            self._schema += message
        elif frame.adds:
            self._dictionaries[frame.dictionary] = self._dictionaries.get(frame.dictionary, b"") + message
        else:
            self._dictionaries[frame.dictionary] = message

    def written(self) -> bytes:
        """As a stream begins."""
        return b"".join((self._schema, *self._dictionaries.values()))


def decode_batch(data: memoryview) -> pa.RecordBatch:
    """The batch of a stream of one. Raises BadArrow."""
    _, batches = _decode(data)
    if len(batches) != 1:
        raise BadArrow("a message that is no record batch", field="vectors")
    return batches[0]


def decode_schema(prefix: bytes) -> pa.Schema:
    """Raises BadArrow."""
    return _decode(prefix + END)[0]


def vector_column(schema: pa.Schema, name: str | None) -> int:
    """The place of the column of vectors. Raises BadColumn, BadDtype."""
    try:
        names, kinds = schema.names, [str(kind)[:100] for kind in schema.types]
    except UnicodeDecodeError:
        raise BadArrow("names of columns that are no UTF-8", field="vectors") from None
    places = [place for place, kind in enumerate(schema.types) if _floats(kind) is not None]
    if name is None:
        named = [place for place in places if names[place] == VECTOR]
        if len(places) != 1 and len(named) != 1:
            shown = ", ".join(names[place][:50] for place in places[:5]) or "none"
            raise BadColumn(f"say with column= which one holds the vectors: of lists of floats there are {shown}", field="column")
        return (named or places)[0]
    found = schema.get_all_field_indices(name)
    if len(found) != 1:
        raise BadColumn(f"there are {len(found)} columns {name[:100]!r}", field="column")
    if found[0] not in places:
        kind = kinds[found[0]]
        raise BadDtype(f"column {name[:100]!r} holds {kind}; expected lists of float16, float32 or float64", field="column")
    return int(found[0])


def vector_name(schema: pa.Schema, place: int) -> str:
    """What the column of vectors is called, in the answer as well. Raises BadColumn."""
    name = str(schema.field(place).name)
    if name == FLAG:
        raise BadColumn(f"the answer has a column of its own named {FLAG!r}: rename yours", field="vectors")
    return name


def _floats(kind: pa.DataType) -> pa.DataType | None:
    """The type of a list's numbers, if it is one of floats."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    lists = pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return kind.value_type if lists and pa.types.is_floating(kind.value_type) else None


def matrix(batch: pa.RecordBatch, place: int, data: bytes | memoryview | None = None, first: int = 0) -> Tensor:
    """The vectors of a batch (n, d); in the memory of `data`, if that is where they lie. Rows count from `first`.

    Raises EmptyVectors, RaggedRows, and BadColumn for what is null.
    """
    column = batch.column(place)
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if column.null_count:
        rows = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)) + first
        raise BadColumn(f"{column.null_count} rows without a vector", field="vectors", rows=rows.tolist())
    lengths = _lengths(column)
    dim = int(lengths[0])
    if (lengths != dim).any():
        rows = np.flatnonzero(lengths != dim) + first
        raise RaggedRows(
            f"vectors of different lengths: {len(rows)} do not have {dim} numbers", field="vectors", rows=rows.tolist()
        )
    if dim == 0:
        raise EmptyVectors("expected vectors of at least one number", field="vectors")
    values = column.flatten()
    if values.null_count:
        rows = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False)) // dim + first
        raise BadColumn("vectors with numbers that are null", field="vectors", rows=np.unique(rows).tolist())
    return npy.as_tensor(_numbers(values, data).reshape(len(column), dim))


def _lengths(column: pa.Array) -> np.ndarray[Any, Any]:
    if pa.types.is_fixed_size_list(column.type):
        return np.full(1, column.type.list_size)
    lengths: np.ndarray[Any, Any] = np.diff(column.offsets.to_numpy())
    return lengths


def _numbers(values: pa.Array, data: bytes | memoryview | None) -> np.ndarray[Any, Any]:
    """The values as an array: of the body's own memory if it may be written to, which pyarrow's never may."""
    array: np.ndarray[Any, Any] = values.to_numpy(zero_copy_only=True)
    if not isinstance(data, memoryview) or data.readonly:
        return array
    whole = np.frombuffer(data, np.uint8)
    start = array.ctypes.data - whole.ctypes.data
    if not 0 <= start <= len(whole) - array.nbytes or start % array.itemsize:
        return array
    return whole[start : start + array.nbytes].view(array.dtype)


def vectors_array(vectors: Tensor) -> pa.FixedSizeListArray:
    """A column of a matrix's rows, in its own memory."""
    array = vectors.numpy()
    kind = pa.from_numpy_dtype(array.dtype)
    return pa.FixedSizeListArray.from_arrays(pa.Array.from_buffers(kind, array.size, [None, pa.py_buffer(array)]), array.shape[1])


def labels_array(labels: Sequence[str]) -> pa.Array:
    """A column of class names."""
    return pa.array(labels, pa.string())


def flags_array(count: int, flags: Sequence[Mapping[str, Any]]) -> pa.Array:
    """A column of the flags' codes, null where there is none; of several of one row the last."""
    if not flags:
        return pa.nulls(count, pa.string())
    codes: list[str | None] = [None] * count
    for each in flags:
        codes[each["row"]] = each["code"]
    return pa.array(codes, pa.string())


def answer_schema(
    schema: pa.Schema | None, place: int, columns: Mapping[str, pa.DataType], about: Mapping[str, str]
) -> pa.Schema:
    """The schema of an answer: the client's, the vectors' column replaced by the first of `columns`, the others at its end.

    Raises BadColumn when one of their names is taken.
    """
    first, *others = [pa.field(name, kind) for name, kind in columns.items()]
    kept = [] if schema is None else list(schema)
    metadata = {} if schema is None else dict(schema.metadata or {})
    fields = [*kept[:place], first, *kept[place + 1 :], *others]
    taken = {each.name for each in kept[:place] + kept[place + 1 :]} & set(columns)
    if taken:
        raise BadColumn(f"the answer has a column of its own named {sorted(taken)[0]!r}: rename yours", field="vectors")
    metadata.update({f"anchorage.{name}".encode(): value.encode() for name, value in about.items()})
    return pa.schema(fields, metadata=metadata)


def answer_batch(schema: pa.Schema, batch: pa.RecordBatch | None, place: int, columns: Sequence[pa.Array]) -> pa.RecordBatch:
    """A batch of the answer: what passes through, and the answer's own columns."""
    kept = [] if batch is None else batch.columns
    return pa.RecordBatch.from_arrays([*kept[:place], columns[0], *kept[place + 1 :], *columns[1:]], schema=schema)


def write(rows: Rows | None, columns: Mapping[str, pa.Array], about: Mapping[str, str]) -> list[memoryview]:
    """A whole stream as its parts: the client's batches, with the answer's columns (n rows each) in them."""
    place = 0 if rows is None else rows.place
    schema = answer_schema(
        None if rows is None else rows.schema, place, {name: each.type for name, each in columns.items()}, about
    )
    sink = Sink()
    with ipc.new_stream(pa.PythonFile(sink, mode="w"), schema) as writer:
        for batch, start, count in _spans(rows, len(next(iter(columns.values())))):
            own = [each.slice(start, count) for each in columns.values()]
            writer.write_batch(answer_batch(schema, batch, place, own))
    return sink.parts


def _spans(rows: Rows | None, count: int) -> Iterator[tuple[pa.RecordBatch | None, int, int]]:
    if rows is None:
        yield None, 0, count
        return
    start = 0
    for batch in rows.batches:
        yield batch, start, batch.num_rows
        start += batch.num_rows


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
