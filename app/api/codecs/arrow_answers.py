"""Writes answers as Arrow IPC streams: the client's other columns, and the answer's columns."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyarrow import ipc
from torch import Tensor

from app.api.codecs.arrow import ArrowRows
from app.errors import BadColumn

#: the column that an answer adds: the flag of the row, or null
FLAG = "anchorage_flag"


@dataclass
class Sink(io.RawIOBase):
    """Keeps the written buffers without a copy."""

    parts: list[Any] = field(default_factory=list)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.parts.append(memoryview(data))
        return len(data)


def vector_name(schema: pa.Schema, place: int) -> str:
    """Returns the name of the column of vectors, which the answer repeats. Raises BadColumn."""
    name = str(schema.field(place).name)
    if name == FLAG:
        raise _reserved(FLAG)
    return name


def vectors_array(vectors: Tensor) -> pa.FixedSizeListArray:
    """Returns a column of the matrix's rows, without a copy."""
    array = vectors.numpy()
    kind = pa.from_numpy_dtype(array.dtype)
    return pa.FixedSizeListArray.from_arrays(
        pa.Array.from_buffers(kind, array.size, [None, pa.py_buffer(array)]), array.shape[1]
    )


def labels_array(labels: Sequence[str]) -> pa.Array:
    """Returns a column of class names."""
    return pa.array(labels, pa.string())


def flags_array(count: int, flags: Sequence[Mapping[str, Any]]) -> pa.Array:
    """Returns a column of the rows' flags: the last flag of each row, or null."""
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
    """Returns the client's schema with the answer's columns.

    The first of `columns` replaces the vectors, and the others follow at the end.
    Raises BadColumn when the client has a column of one of their names.
    """
    first, *others = [pa.field(name, kind) for name, kind in columns.items()]
    kept = [] if schema is None else list(schema)
    metadata = {} if schema is None else dict(schema.metadata or {})
    fields = [*kept[:place], first, *kept[place + 1 :], *others]
    taken = {each.name for each in kept[:place] + kept[place + 1 :]} & set(columns)
    if taken:
        raise _reserved(min(taken))
    metadata.update({f"anchorage.{name}".encode(): value.encode() for name, value in about.items()})
    return pa.schema(fields, metadata=metadata)


def answer_batch(
    schema: pa.Schema, batch: pa.RecordBatch | None, place: int, columns: Sequence[pa.Array]
) -> pa.RecordBatch:
    """Returns a batch of the answer: the client's other columns, and the answer's columns."""
    kept = [] if batch is None else batch.columns
    return pa.RecordBatch.from_arrays(
        [*kept[:place], columns[0], *kept[place + 1 :], *columns[1:]], schema=schema
    )


def write(
    rows: ArrowRows | None, columns: Mapping[str, pa.Array], about: Mapping[str, str]
) -> list[memoryview]:
    """Returns a whole stream in parts: the client's batches with the answer's columns (n rows)."""
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


def _spans(rows: ArrowRows | None, count: int) -> Iterator[tuple[pa.RecordBatch | None, int, int]]:
    if rows is None:
        yield None, 0, count
        return
    start = 0
    for batch in rows.batches:
        yield batch, start, batch.num_rows
        start += batch.num_rows


def _reserved(name: str) -> BadColumn:
    return BadColumn(
        f"The answer adds a column named {name!r}. Rename your column of that name.",
        field="vectors",
    )
