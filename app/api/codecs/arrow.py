"""Reads and writes Arrow IPC streams: record batches with columns of vectors.

Each route lists the columns that it reads, and the schema is checked before the first batch.
Dictionaries, views and compression are refused, so a body takes no more memory than its bytes.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import ipc
from torch import Tensor

from app.api.codecs import npy
from app.errors import (
    BadArrow,
    BadColumn,
    EmptyVectors,
    RaggedRows,
    TooManyVectors,
    blaming,
)

#: the column of vectors of an answer, and the column of its rows' flags
VECTOR, FLAG = "vector", "anchorage_flag"

#: text columns of an anchor set's items, and the fields of the request that they become
TEXT_FIELDS = {"input": "inputs", "role": "roles"}

#: bytes before each message: a marker, and the length of its metadata
FRAME_BYTES = 8

#: longest metadata of a message. pyarrow checks it, but metadata may refer to one string many
#: times: 8 KiB can stand for some hundred megabytes, and 1 KiB for some megabytes
METADATA_BYTES, LIGHT_METADATA_BYTES = 8 * 1024, 1024

#: most record batches of a body: pyarrow keeps some kilobytes for each
MAX_BATCHES = 4_096


def is_light(data: bytes | memoryview) -> bool:
    """Returns whether the schema is read in little time."""
    return _metadata_size(data) <= LIGHT_METADATA_BYTES


def read_vectors(data: bytes | memoryview, max_rows: int) -> Tensor:
    """Returns the vectors of a whole stream, without a copy if possible.

    It has one column of vectors, and optionally one of ids, which is not read.
    """
    places: list[int] = []

    def check(schema: pa.Schema) -> None:
        for place, each in enumerate(schema):
            if holds_vectors(each.type):
                places.append(place)
            elif not is_id(each.type):
                raise BadColumn(
                    f"The column {each.name[:100]!r} holds {str(each.type)[:100]}. Send one column "
                    "of lists of float16, float32 or float64, and at most one other: ids, as whole "
                    "numbers or strings.",
                    field="vectors",
                )
        if len(places) != 1 or len(schema) > 2:
            raise BadColumn(
                f"The stream has {len(schema)} columns, {len(places)} of them with lists of "
                "floats. Send one column of vectors, and at most one other of ids.",
                field="vectors",
            )

    batches = read_batches(data, max_rows, check)
    parts, start = [], 0
    for batch in batches:
        parts.append(matrix(batch, places[0], data, start))
        start += batch.num_rows
    return _join(parts)


def read_items(data: bytes | memoryview, max_rows: int) -> dict[str, Any]:
    """Returns the fields of a request with the items of an anchor set.

    A column of float lists holds the vectors by the encoder of its name. The text columns `input`
    and `role` hold the items and their roles.
    """
    batches = read_batches(data, max_rows, _check_items)
    schema = batches[0].schema
    fields: dict[str, Any] = {}
    for place, each in enumerate(schema):
        if each.name in TEXT_FIELDS and not holds_vectors(each.type):
            fields[TEXT_FIELDS[each.name]] = _texts(batches, place, each.name)
            continue
        parts, start = [], 0
        with blaming(f"embeddings.{each.name[:100]}", always=True):
            for batch in batches:
                parts.append(matrix(batch, place, first=start))
                start += batch.num_rows
            fields.setdefault("embeddings", {})[each.name] = _join(parts)
    return fields


def _check_items(schema: pa.Schema) -> None:
    names = schema.names
    for name, kind in zip(names, schema.types, strict=True):
        if names.count(name) > 1:
            raise BadColumn(f"Two columns are named {name[:100]!r}. Rename one.", field="column")
        if not holds_vectors(kind) and not (name in TEXT_FIELDS and is_text(kind)):
            raise BadColumn(
                f"The column {name[:100]!r} holds {str(kind)[:100]}. Send columns of float lists, "
                "named after their encoders, and the text columns `input` and `role`.",
                field="column",
            )


def _texts(batches: Sequence[pa.RecordBatch], place: int, name: str) -> list[str]:
    """Returns the texts of a column. Raises BadColumn for nulls."""
    texts = [text for batch in batches for text in batch.column(place).to_pylist()]
    missing = [row for row, text in enumerate(texts) if text is None]
    if missing:
        raise BadColumn(
            f"The column {name!r} is null in {len(missing)} rows. Fill them.",
            field=TEXT_FIELDS[name],
            rows=missing,
        )
    return texts


def read_batches(
    data: bytes | memoryview, max_rows: int, check: Callable[[pa.Schema], None]
) -> list[pa.RecordBatch]:
    """Returns the batches of a whole stream that have rows, at least one.

    check  refuses a schema with columns that the route does not read
    """
    source = pa.BufferReader(pa.py_buffer(data))
    batches: list[pa.RecordBatch] = []
    try:
        schema = ipc.read_schema(_next_message(data, source, "schema"))
        names = schema.names  # raises UnicodeDecodeError
    except _UNREADABLE as error:
        raise _unreadable(error) from None
    if len(names) == 0:
        raise BadColumn("The Arrow stream has no columns.", field="vectors")
    check(schema)
    try:
        rows = count = 0
        while (message := _next_message(data, source, "record batch")) is not None:
            _refuse_compressed(message.metadata.to_pybytes())
            batch = ipc.read_record_batch(message, schema)
            batch.validate(full=True)
            rows, count = rows + batch.num_rows, count + 1
            if rows > max_rows:
                detail = f"The body has more than {max_rows} vectors, the limit. Split it."
                raise TooManyVectors(detail, field="vectors", limit=max_rows)
            if count > MAX_BATCHES:
                raise BadArrow(
                    f"The stream has more than {MAX_BATCHES} record batches. Send larger ones.",
                    field="vectors",
                )
            if batch.num_rows:
                batches.append(batch)
    except _UNREADABLE as error:
        raise _unreadable(error) from None
    if sum(batch.nbytes for batch in batches) > len(data):
        raise BadArrow("The buffers of the record batches overlap.", field="vectors")
    if not batches:
        raise EmptyVectors(
            "The Arrow stream has no rows. Send at least one vector.", field="vectors"
        )
    return batches


#: what pyarrow raises for a body that is not an Arrow stream
_UNREADABLE = (
    pa.ArrowException,
    OSError,
    ValueError,
    TypeError,
    MemoryError,
    OverflowError,
    EOFError,
    struct.error,
)


def _unreadable(error: BaseException) -> BadArrow:
    line = (str(error).splitlines() or [type(error).__name__])[0][:200]
    return BadArrow(f"The body is not an Arrow IPC stream: {line}.", field="vectors")


def _next_message(data: bytes | memoryview, source: pa.BufferReader, kind: str) -> ipc.Message:
    """Returns the next message, of this kind; None at the end of the stream."""
    start = source.tell()
    if start == len(data) or _metadata_size(data[start : start + FRAME_BYTES]) == 0:
        if kind == "schema":
            raise BadArrow("The Arrow stream ends before its schema.", field="vectors")
        return None
    message = ipc.read_message(source)
    if message.type != kind:
        raise BadArrow(
            f"The Arrow stream holds a {message.type}, and may hold only a schema and then record "
            "batches. Send plain columns, without dictionaries.",
            field="vectors",
        )
    return message


def _metadata_size(head: bytes | memoryview) -> int:
    """Returns the length of a message's metadata, from the bytes before it."""
    head = head[:FRAME_BYTES]
    mark, size = struct.unpack("<ii", head) if len(head) == FRAME_BYTES else (0, 0)
    if mark != -1 or not 0 <= size <= METADATA_BYTES:
        raise BadArrow(
            "The body is not an Arrow IPC stream: a message does not begin with its marker, or has "
            f"more than {METADATA_BYTES} bytes of names and metadata.",
            field="vectors",
        )
    return int(size)


def _refuse_compressed(metadata: bytes) -> None:
    """Raises BadArrow for a record batch whose field 3 names a compression (Message.fbs).

    The message's own metadata (field 4) may name one too, as the first writers did.
    """

    def place_of(table: int, number: int) -> int:
        """Returns where a field of a flatbuffer's table lies; 0 for a table without it."""
        (back,) = struct.unpack_from("<i", metadata, table)
        (size,) = struct.unpack_from("<H", metadata, table - back)
        slot = 4 + 2 * number
        (found,) = struct.unpack_from("<H", metadata, table - back + slot) if slot < size else (0,)
        return table + found if found else 0

    def follow(place: int) -> int:
        return place + int(struct.unpack_from("<I", metadata, place)[0])

    message = follow(0)
    if place_of(follow(place_of(message, 2)), 3) or place_of(message, 4):
        raise BadArrow(
            "The record batches are compressed or have metadata. Write them without both.",
            field="vectors",
        )


def holds_vectors(kind: pa.DataType) -> bool:
    """Returns whether a column of this type can hold vectors."""
    return is_list(kind) and bool(pa.types.is_floating(kind.value_type))


def is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind)
    )


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_id(kind: pa.DataType) -> bool:
    """Returns whether a column of this type can hold ids."""
    return bool(pa.types.is_integer(kind)) or is_text(kind)


def matrix(
    batch: pa.RecordBatch, place: int, data: bytes | memoryview | None = None, first: int = 0
) -> Tensor:
    """Returns the vectors of a batch (n, d), without a copy if they lie in `data`.

    first  the number of the batch's first row, for errors
    Raises EmptyVectors, RaggedRows, and BadColumn for null vectors or numbers.
    """
    column = batch.column(place)
    if column.null_count:
        rows = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)) + first
        raise BadColumn(
            f"The column of vectors is null in {column.null_count} rows. Remove these rows.",
            field="vectors",
            rows=rows.tolist(),
        )
    lengths = list_lengths(column)
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


def list_lengths(column: pa.Array) -> np.ndarray[Any, Any]:
    """Returns the lengths of a column's lists (n)."""
    if pa.types.is_fixed_size_list(column.type):
        return np.full(len(column), column.type.list_size)
    lengths: np.ndarray[Any, Any] = np.diff(column.offsets.to_numpy())
    return lengths


def _join(parts: Sequence[Tensor]) -> Tensor:
    """Returns the vectors of all batches."""
    if len({part.shape[1] for part in parts}) > 1:
        detail = "The record batches hold vectors of different lengths. Send one length."
        raise RaggedRows(detail, field="vectors")
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


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


@dataclass
class _Sink(io.RawIOBase):
    """Keeps the written buffers without a copy."""

    parts: list[Any] = field(default_factory=list)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.parts.append(memoryview(data))
        return len(data)


def write(columns: Mapping[str, pa.Array], about: Mapping[str, str]) -> list[memoryview]:
    """Returns a stream in parts: one batch of the columns, and the description as metadata."""
    metadata = {f"anchorage.{name}": text for name, text in about.items()}
    batch = pa.record_batch(list(columns.values()), names=list(columns)).replace_schema_metadata(
        metadata
    )
    sink = _Sink()
    with ipc.new_stream(pa.PythonFile(sink, mode="w"), batch.schema) as writer:
        writer.write_batch(batch)
    return sink.parts


def vectors_array(vectors: Tensor) -> pa.FixedSizeListArray:
    """Returns a column of the matrix's rows, without a copy."""
    array = vectors.numpy()
    kind = pa.from_numpy_dtype(array.dtype)
    return pa.FixedSizeListArray.from_arrays(
        pa.Array.from_buffers(kind, array.size, [None, pa.py_buffer(array)]), array.shape[1]
    )


def flags_array(count: int, flags: Sequence[Mapping[str, Any]]) -> pa.Array:
    """Returns a column of the rows' flags: the last flag of each row, or null."""
    if not flags:
        return pa.nulls(count, pa.string())
    codes: list[str | None] = [None] * count
    for each in flags:
        codes[each["row"]] = each["code"]
    return pa.array(codes, pa.string())
