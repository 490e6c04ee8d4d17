"""Arrow's IPC stream: record batches of vectors and whatever else the client keeps beside them, which passes through untouched.

Nothing that a body holds may cost more than a stated factor of its bytes: `app.api.codecs.arrow_messages` counts before pyarrow reads.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import ipc
from torch import Tensor

from app.api.codecs import npy
from app.api.codecs.arrow_messages import (
    BATCH,
    DICTIONARY,
    END,
    END_OF_STREAM,
    FRAME_BYTES,
    SCHEMA,
    Dictionaries,
    Frame,
    layout_of,
    metadata_size,
    next_frame,
)
from app.errors import BadArrow, BadColumn, BadDtype, EmptyVectors, RaggedRows, TooManyVectors

__all__ = [
    "BATCH",
    "END",
    "END_OF_STREAM",
    "FRAME_BYTES",
    "SCHEMA",
    "Frame",
    "metadata_size",
    "next_frame",
]

MEDIA = "application/vnd.apache.arrow.stream"

#: the column of vectors, unless the request names another or there is only one of lists of floats
VECTOR = "vector"
#: the column that an answer adds: why a row is not what one would expect
FLAG = "anchorage_flag"

#: messages of a body that is answered as a whole; and its batches times their fields: pyarrow keeps 250 bytes for each
MOST_MESSAGES, MOST_BATCH_FIELDS = 4_096, 2**17


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


def read(data: bytes | memoryview, column: str | None, most_rows: int) -> Rows:
    """The vectors of a whole stream where they lie, and its batches.

    Raises BadArrow, BadColumn, BadDtype, EmptyVectors, RaggedRows, TooManyVectors.
    """
    frames = _frames(data, most_rows)
    reader, view, batches = Reader(column, len(data)), memoryview(data), []
    for frame in frames:
        batch = reader.add(frame, view[frame.start : frame.end])
        if len(frames) * reader.fields > MOST_BATCH_FIELDS:
            raise BadArrow(
                f"more than {MOST_BATCH_FIELDS} fields in all messages: send larger record batches, or stream=true",
                field="vectors",
            )
        if batch is not None and batch.num_rows:
            batches.append(batch)
    if reader.schema is None:
        raise BadArrow("the stream ends before its schema", field="vectors")
    if not batches:
        raise EmptyVectors("expected at least one row", field="vectors")
    parts, start = [], 0
    for batch in batches:
        parts.append(matrix(batch, reader.place, data, start))
        start += batch.num_rows
    if len({part.shape[1] for part in parts}) > 1:
        raise RaggedRows("batches of vectors of different lengths", field="vectors")
    return Rows(
        parts[0] if len(parts) == 1 else torch.cat(parts), batches, reader.schema, reader.place
    )


def _frames(data: bytes | memoryview, most_rows: int) -> list[Frame]:
    """Raises BadArrow, TooManyVectors."""
    found: list[Frame] = []
    start = rows = 0
    while start < len(data):
        frame = next_frame(data, start)
        if frame is None or frame.end > len(data):
            raise BadArrow("the stream ends within a message", field="vectors")
        if frame.kind == END_OF_STREAM:
            break
        start, rows = frame.end, rows + (frame.rows if frame.kind == BATCH else 0)
        found.append(frame)
        if len(found) > MOST_MESSAGES:
            raise BadArrow(
                f"more than {MOST_MESSAGES} messages: send larger record batches, or stream=true",
                field="vectors",
            )
        if rows > most_rows:
            raise TooManyVectors(f"more than {most_rows} vectors", field="vectors", limit=most_rows)
    return found


class Reader:
    """Reads a stream message by message.

    schema, place  the schema, once it has come, and the place of the column of vectors
    fields         how many a batch has, nested ones included
    dictionaries   what they hold and cost
    """

    def __init__(self, column: str | None, most_dictionary_bytes: int) -> None:
        self.schema: pa.Schema | None = None
        self.place, self.fields = -1, 0
        self.dictionaries = Dictionaries({}, 0)
        self._column, self._most = column, most_dictionary_bytes
        self._source = _Source()
        self._bytes = 0

    def add(self, frame: Frame, message: memoryview) -> pa.RecordBatch | None:
        """The batch, if the message is one; it lies in the message's memory.

        Raises BadArrow, also for what only reads as Arrow (offsets that lead elsewhere, text that is no UTF-8), BodyTooLarge,
        BadColumn and BadDtype.
        """
        if (frame.kind == SCHEMA) != (self.schema is None):
            raise BadArrow("a stream begins with its schema, and has one", field="vectors")
        self._bytes += len(message)
        try:
            if frame.kind == SCHEMA:
                self._begin(message)
            elif frame.kind == DICTIONARY:
                self.dictionaries.add(frame, self._bytes)
                self._source.parts.append(message)
            else:
                self._source.parts.append(message)
                return self._batch()
        except (
            pa.ArrowException,
            OSError,
            ValueError,
            TypeError,
            MemoryError,
            OverflowError,
            StopIteration,
        ) as error:
            raise BadArrow(
                f"this is no Arrow IPC stream: {_first_line(error)}", field="vectors"
            ) from None
        return None

    def _begin(self, message: memoryview) -> None:
        layout = layout_of(message)
        self.fields, self.dictionaries = (
            layout.fields,
            Dictionaries(layout.dictionaries, self._most),
        )
        self._source.parts.append(message)
        self._stream = ipc.open_stream(self._source)
        self.schema = self._stream.schema
        self.place = vector_column(self.schema, self._column)

    def _batch(self) -> pa.RecordBatch:
        batch, dictionaries = self._stream.read_next_batch(), self.dictionaries
        batch.validate()
        for place, column in enumerate(batch.columns):
            # A dictionary that was checked is not read again for each batch: nothing here follows its indices.
            column.validate(full=place in dictionaries.new or place not in dictionaries.columns)
        dictionaries.were_read()
        return batch


class _Source(io.RawIOBase):
    """The messages that pyarrow is to read: nothing is copied."""

    def __init__(self) -> None:
        self.parts: list[memoryview] = []

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> Any:
        """The next bytes: of one message, which pyarrow never reads beyond."""
        if not self.parts:
            return b""
        found, rest = self.parts[0][:size], self.parts[0][size:]
        self.parts[:1] = [rest] if len(rest) else []
        return found


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
            raise BadColumn(
                f"say with column= which one holds the vectors: of lists of floats there are {shown}",
                field="column",
            )
        return (named or places)[0]
    found = schema.get_all_field_indices(name)
    if len(found) != 1:
        raise BadColumn(f"there are {len(found)} columns {name[:100]!r}", field="column")
    if found[0] not in places:
        kind = kinds[found[0]]
        raise BadDtype(
            f"column {name[:100]!r} holds {kind}; expected lists of float16, float32 or float64",
            field="column",
        )
    return int(found[0])


def vector_name(schema: pa.Schema, place: int) -> str:
    """What the column of vectors is called, in the answer as well. Raises BadColumn."""
    name = str(schema.field(place).name)
    if name == FLAG:
        raise BadColumn(
            f"the answer has a column of its own named {FLAG!r}: rename yours", field="vectors"
        )
    return name


def _floats(kind: pa.DataType) -> pa.DataType | None:
    """The type of a list's numbers, if it is one of floats."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    lists = (
        pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind)
    )
    return kind.value_type if lists and pa.types.is_floating(kind.value_type) else None


def matrix(
    batch: pa.RecordBatch, place: int, data: bytes | memoryview | None = None, first: int = 0
) -> Tensor:
    """The vectors of a batch (n, d); in the memory of `data`, if that is where they lie. Rows count from `first`.

    Raises EmptyVectors, RaggedRows, and BadColumn for what is null.
    """
    column = batch.column(place)
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if column.null_count:
        rows = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)) + first
        raise BadColumn(
            f"{column.null_count} rows without a vector", field="vectors", rows=rows.tolist()
        )
    lengths = _lengths(column)
    dim = int(lengths[0])
    if (lengths != dim).any():
        rows = np.flatnonzero(lengths != dim) + first
        raise RaggedRows(
            f"vectors of different lengths: {len(rows)} do not have {dim} numbers",
            field="vectors",
            rows=rows.tolist(),
        )
    if dim == 0:
        raise EmptyVectors("expected vectors of at least one number", field="vectors")
    values = column.flatten()
    if values.null_count:
        rows = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False)) // dim + first
        raise BadColumn(
            "vectors with numbers that are null", field="vectors", rows=np.unique(rows).tolist()
        )
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
    return pa.FixedSizeListArray.from_arrays(
        pa.Array.from_buffers(kind, array.size, [None, pa.py_buffer(array)]), array.shape[1]
    )


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
    schema: pa.Schema | None,
    place: int,
    columns: Mapping[str, pa.DataType],
    about: Mapping[str, str],
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
        raise BadColumn(
            f"the answer has a column of its own named {sorted(taken)[0]!r}: rename yours",
            field="vectors",
        )
    metadata.update({f"anchorage.{name}".encode(): value.encode() for name, value in about.items()})
    return pa.schema(fields, metadata=metadata)


def answer_batch(
    schema: pa.Schema, batch: pa.RecordBatch | None, place: int, columns: Sequence[pa.Array]
) -> pa.RecordBatch:
    """A batch of the answer: what passes through, and the answer's own columns."""
    kept = [] if batch is None else batch.columns
    return pa.RecordBatch.from_arrays(
        [*kept[:place], columns[0], *kept[place + 1 :], *columns[1:]], schema=schema
    )


def write(
    rows: Rows | None, columns: Mapping[str, pa.Array], about: Mapping[str, str]
) -> list[memoryview]:
    """A whole stream as its parts: the client's batches, with the answer's columns (n rows each) in them."""
    place = 0 if rows is None else rows.place
    schema = answer_schema(
        None if rows is None else rows.schema,
        place,
        {name: each.type for name, each in columns.items()},
        about,
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
