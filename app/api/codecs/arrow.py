"""Reads Arrow IPC streams: record batches with a column of vectors.

The answer repeats the other columns unchanged: see `app.api.codecs.arrow_answers`. A body cannot
cost much more memory than its bytes, as `app.api.codecs.arrow_messages` counts first.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    END_OF_STREAM,
    SCHEMA,
    Dictionaries,
    Frame,
    layout_of,
    next_frame,
)
from app.errors import BadArrow, BadColumn, BadDtype, EmptyVectors, RaggedRows, TooManyVectors

#: the column of vectors, if several columns hold lists of floats and the request names none
VECTOR = "vector"

#: most messages of a body that is not a stream; and most messages times fields, as pyarrow
#: keeps 250 bytes for each field of each batch
MOST_MESSAGES, MOST_BATCH_FIELDS = 4_096, 2**17


@dataclass(frozen=True)
class ArrowRows:
    """The batches of a body, and their vectors in one matrix.

    place  the position of the vectors among the columns
    """

    vectors: Tensor
    batches: Sequence[pa.RecordBatch]
    schema: pa.Schema
    place: int


def read(data: bytes | memoryview, column: str | None, most_rows: int) -> ArrowRows:
    """Returns the batches and vectors of a whole stream, the vectors without a copy if possible.

    Raises BadArrow, BadColumn, BadDtype, EmptyVectors, RaggedRows, TooManyVectors.
    """
    reader, batches = read_batches(data, most_rows, lambda schema: vector_column(schema, column))
    parts, start = [], 0
    for batch in batches:
        parts.append(matrix(batch, reader.place, data, start))
        start += batch.num_rows
    if len({part.shape[1] for part in parts}) > 1:
        detail = "The record batches hold vectors of different lengths. Send one length."
        raise RaggedRows(detail, field="vectors")
    assert reader.schema is not None
    return ArrowRows(
        parts[0] if len(parts) == 1 else torch.cat(parts), batches, reader.schema, reader.place
    )


def read_batches(
    data: bytes | memoryview, most_rows: int, choose: Callable[[pa.Schema], int]
) -> tuple[Reader, list[pa.RecordBatch]]:
    """Returns the reader and the batches of a whole stream that have rows, at least one.

    choose  returns the position of the column of vectors

    Raises BadArrow, EmptyVectors, TooManyVectors, and what `choose` raises.
    """
    frames = _frames(data, most_rows)
    reader, view, batches = Reader(choose, len(data)), memoryview(data), []
    for frame in frames:
        batch = reader.add(frame, view[frame.start : frame.end])
        if len(frames) * reader.fields > MOST_BATCH_FIELDS:
            raise BadArrow(
                f"The stream's messages have more than {MOST_BATCH_FIELDS} fields together. "
                "Send larger record batches, or set `stream=true`.",
                field="vectors",
            )
        if batch is not None and batch.num_rows:
            batches.append(batch)
    if reader.schema is None:
        raise BadArrow("The Arrow stream ends before its schema.", field="vectors")
    if not batches:
        raise EmptyVectors(
            "The Arrow stream has no rows. Send at least one vector.", field="vectors"
        )
    return reader, batches


def _frames(data: bytes | memoryview, most_rows: int) -> list[Frame]:
    """Returns the messages of a body. Raises BadArrow, TooManyVectors."""
    found: list[Frame] = []
    start = rows = 0
    while start < len(data):
        frame = next_frame(data, start)
        if frame is None or frame.end > len(data):
            raise BadArrow("The Arrow stream ends within a message.", field="vectors")
        if frame.kind == END_OF_STREAM:
            break
        start, rows = frame.end, rows + (frame.rows if frame.kind == BATCH else 0)
        found.append(frame)
        if len(found) > MOST_MESSAGES:
            raise BadArrow(
                f"The stream has more than {MOST_MESSAGES} messages. Send larger record batches, "
                "or set `stream=true`.",
                field="vectors",
            )
        if rows > most_rows:
            detail = f"The body has more than {most_rows} vectors, the limit. Split it."
            raise TooManyVectors(detail, field="vectors", limit=most_rows)
    return found


class Reader:
    """Reads a stream message by message.

    schema, place  the schema, after its message, and the position of the column of vectors
    fields         the number of fields of a batch, including nested ones
    dictionaries   the sizes and costs of the dictionaries
    """

    def __init__(self, choose: Callable[[pa.Schema], int], most_dictionary_bytes: int) -> None:
        self.schema: pa.Schema | None = None
        self.place, self.fields = -1, 0
        self.dictionaries = Dictionaries({}, 0)
        self._choose, self._most = choose, most_dictionary_bytes
        self._source = _Source()
        self._bytes = 0

    def add(self, frame: Frame, message: memoryview) -> pa.RecordBatch | None:
        """Returns the batch in the message's memory; None if the message is not a batch.

        Raises BadArrow, also for wrong offsets and text that is not UTF-8, BodyTooLarge,
        BadColumn and BadDtype.
        """
        if (frame.kind == SCHEMA) != (self.schema is None):
            raise BadArrow("An Arrow stream has one schema, at its beginning.", field="vectors")
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
                f"The body is not an Arrow IPC stream: {_first_line(error)}.", field="vectors"
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
        self.place = self._choose(self.schema)

    def _batch(self) -> pa.RecordBatch:
        batch, dictionaries = self._stream.read_next_batch(), self.dictionaries
        batch.validate()
        for place, column in enumerate(batch.columns):
            # Each dictionary is checked once: this process never follows its indices.
            column.validate(full=place in dictionaries.new or place not in dictionaries.columns)
        dictionaries.were_read()
        return batch


class _Source(io.RawIOBase):
    """The messages that pyarrow reads, without a copy."""

    def __init__(self) -> None:
        self.parts: list[memoryview] = []

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> Any:
        """Returns the next bytes of one message; pyarrow never reads past its end."""
        if not self.parts:
            return b""
        found, rest = self.parts[0][:size], self.parts[0][size:]
        self.parts[:1] = [rest] if len(rest) else []
        return found


def vector_column(schema: pa.Schema, name: str | None) -> int:
    """Returns the position of the column of vectors. Raises BadArrow, BadColumn, BadDtype."""
    try:
        names, kinds = schema.names, [str(kind)[:100] for kind in schema.types]
    except UnicodeDecodeError:
        raise BadArrow("The names of the columns are not UTF-8.", field="vectors") from None
    places = [place for place, kind in enumerate(schema.types) if _floats(kind) is not None]
    if name is None:
        named = [place for place in places if names[place] == VECTOR]
        if len(places) != 1 and len(named) != 1:
            if not places:
                raise BadColumn("No column of the stream holds lists of floats.", field="column")
            shown = ", ".join(f"`{names[place][:50]}`" for place in places[:5])
            raise BadColumn(
                f"Several columns hold lists of floats: {shown}. Name the one with the vectors "
                "as `column` in the query string.",
                field="column",
            )
        return (named or places)[0]
    found = schema.get_all_field_indices(name)
    if len(found) != 1:
        shown = ", ".join(f"`{each[:50]}`" for each in names[:10])
        raise BadColumn(
            f"The stream has {len(found)} columns named {name[:100]!r}. Its columns are {shown}.",
            field="column",
        )
    if found[0] not in places:
        kind = kinds[found[0]]
        raise BadDtype(
            f"The column {name[:100]!r} holds {kind}. Send lists of float16, float32 or float64.",
            field="column",
        )
    return int(found[0])


def holds_vectors(kind: pa.DataType) -> bool:
    """Returns whether a column of this type can hold vectors."""
    return _floats(kind) is not None


def _floats(kind: pa.DataType) -> pa.DataType | None:
    """Returns the number type of a list type; None if its items are not floats."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    lists = (
        pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind)
    )
    return kind.value_type if lists and pa.types.is_floating(kind.value_type) else None


def matrix(
    batch: pa.RecordBatch, place: int, data: bytes | memoryview | None = None, first: int = 0
) -> Tensor:
    """Returns the vectors of a batch (n, d), without a copy if they lie in `data`.

    first  the number of the batch's first row, for errors
    Raises EmptyVectors, RaggedRows, and BadColumn for null vectors or numbers.
    """
    column = batch.column(place)
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if column.null_count:
        rows = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)) + first
        raise BadColumn(
            f"The column of vectors is null in {column.null_count} rows. Remove these rows.",
            field="vectors",
            rows=rows.tolist(),
        )
    lengths = _lengths(column)
    dim = int(lengths[0])
    if (lengths != dim).any():
        rows = np.flatnonzero(lengths != dim) + first
        raise RaggedRows(
            f"The vectors have different lengths: {len(rows)} of them do not have {dim} numbers.",
            field="vectors",
            rows=rows.tolist(),
        )
    if dim == 0:
        raise EmptyVectors("The vectors have no numbers.", field="vectors")
    values = column.flatten()
    if values.null_count:
        rows = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False)) // dim + first
        raise BadColumn(
            "Some vectors hold null in place of a number. Replace or remove them.",
            field="vectors",
            rows=np.unique(rows).tolist(),
        )
    return npy.as_tensor(_numbers(values, data).reshape(len(column), dim))


def _lengths(column: pa.Array) -> np.ndarray[Any, Any]:
    if pa.types.is_fixed_size_list(column.type):
        return np.full(1, column.type.list_size)
    lengths: np.ndarray[Any, Any] = np.diff(column.offsets.to_numpy())
    return lengths


def _numbers(values: pa.Array, data: bytes | memoryview | None) -> np.ndarray[Any, Any]:
    """Returns the values as an array, in the body's writable memory if they lie there."""
    array: np.ndarray[Any, Any] = values.to_numpy(zero_copy_only=True)
    if not isinstance(data, memoryview) or data.readonly:
        return array
    whole = np.frombuffer(data, np.uint8)
    start = array.ctypes.data - whole.ctypes.data
    if not 0 <= start <= len(whole) - array.nbytes or start % array.itemsize:
        return array
    return whole[start : start + array.nbytes].view(array.dtype)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
