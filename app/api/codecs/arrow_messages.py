"""Reads the frames of an Arrow IPC stream, and counts what they would cost, before pyarrow does.

A flatbuffer can refer to one string or table many times, and a record batch to one range of its
body, so that 900 kB can stand for 50 GB. Everything counts as often as the message refers to it.
The numbers of kinds and slots come from Schema.fbs and Message.fbs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from app.errors import BadArrow, BodyTooLarge

#: bytes before each message, which hold the length of its metadata; and the longest metadata
FRAME_BYTES, MOST_METADATA_BYTES = 8, 2**20

#: most columns of a stream; most fields, with nested ones and entries of metadata; and most
#: entries of metadata of any other message
MOST_COLUMNS, MOST_FIELDS, MOST_ENTRIES = 1_024, 4_096, 64

#: pyarrow reads a dictionary again when it grows, for each field that uses it, together with the
#: other dictionaries of these columns. Together this may take DICTIONARY_FACTOR times the bytes of
#: the stream so far, and DICTIONARY_BYTES more; each use counts as at least USE_BYTES.
DICTIONARY_FACTOR, DICTIONARY_BYTES, USE_BYTES = 4, 2**20, 64

#: kinds of messages
END_OF_STREAM, SCHEMA, DICTIONARY, BATCH = 0, 1, 2, 3
END = b"\xff\xff\xff\xff\0\0\0\0"

#: the numbers of a flatbuffer
UINT16, UINT32 = struct.Struct("<H").unpack_from, struct.Struct("<I").unpack_from
INT32, INT64 = struct.Struct("<i").unpack_from, struct.Struct("<q").unpack_from

#: types whose values may overlap, so that a few bytes can stand for any number of values
VIEWS = {23: "binary_view", 24: "string_view", 25: "list_view", 26: "large_list_view"}
TIMESTAMP = 10


class _Table:
    """A table of a flatbuffer: its fields by number.

    Raises struct.error and ValueError for references out of the buffer.
    """

    __slots__ = ("_data", "_places", "_start")

    def __init__(self, data: bytes, start: int) -> None:
        (back,) = INT32(data, start)
        begin = start - back
        if begin < 0:
            raise ValueError("a table without a layout")
        (size,) = UINT16(data, begin)
        self._data, self._start = data, start
        self._places = struct.unpack_from(f"<{max(0, size - 4) // 2}H", data, begin + 4)

    @classmethod
    def root(cls, data: bytes) -> Self:
        return cls(data, *UINT32(data, 0))

    def has(self, number: int) -> bool:
        return number < len(self._places) and self._places[number] != 0

    def byte(self, number: int) -> int:
        return self._data[self._start + self._places[number]] if self.has(number) else 0

    def long(self, number: int) -> int:
        return (
            int(INT64(self._data, self._start + self._places[number])[0]) if self.has(number) else 0
        )

    def table(self, number: int) -> _Table | None:
        return _Table(self._data, self._at(number)) if self.has(number) else None

    def span(self, number: int) -> tuple[int, int]:
        """Returns where a vector or a string begins, and its number of elements."""
        if not self.has(number):
            return 0, 0
        place = self._at(number)
        return place + 4, int(UINT32(self._data, place)[0])

    def element(self, place: int) -> _Table:
        """Returns the table that an element of a vector refers to."""
        return _Table(self._data, place + int(UINT32(self._data, place)[0]))

    def part(self, start: int, size: int) -> memoryview:
        return memoryview(self._data)[start : start + size]

    def _at(self, number: int) -> int:
        place: int = self._start + self._places[number]
        (more,) = UINT32(self._data, place)
        return place + int(more)


@dataclass(frozen=True)
class Frame:
    """The position of a message in a stream.

    rows        the rows of a record batch
    dictionary  the id of a dictionary
    adds        the dictionary's values follow those that it already has
    """

    kind: int
    start: int
    end: int
    rows: int = 0
    dictionary: int = 0
    adds: bool = False


@dataclass
class Layout:
    """The size of a schema.

    fields        the number of fields, with nested ones and entries of metadata
    dictionaries  by id, the columns that use a dictionary, once for each use
    """

    fields: int = 0
    dictionaries: dict[int, list[int]] = field(default_factory=dict)


class Dictionaries:
    """The sizes of a stream's dictionaries, and the cost of reading them, within `most` bytes.

    columns  the columns that have dictionaries
    new      the columns whose dictionaries changed after the last batch
    held     the bytes of all dictionaries
    unread   the cost of the changed dictionaries, which the next batch adds
    """

    def __init__(self, uses: Mapping[int, Sequence[int]], most: int) -> None:
        self.columns = frozenset(column for columns in uses.values() for column in columns)
        self.new: set[int] = set()
        self.held = self.unread = 0
        self._uses, self._most, self._cost = uses, most, 0
        self._sizes: dict[int, int] = {}
        self._column_sizes = dict.fromkeys(self.columns, 0)

    def add(self, frame: Frame, seen: int) -> None:
        """Counts a dictionary after `seen` bytes of the stream. Raises BadArrow, BodyTooLarge."""
        columns = self._uses.get(frame.dictionary)
        if columns is None:
            raise BadArrow(
                "The Arrow stream has a dictionary that no column uses.", field="vectors"
            )
        size, before = frame.end - frame.start, self._sizes.get(frame.dictionary, 0)
        more = size if frame.adds else size - before
        self._sizes[frame.dictionary] = before + more
        self.held += more
        for column in columns:
            self._column_sizes[column] += more
        cost = sum(self._column_sizes[column] + USE_BYTES for column in columns)
        self._cost += cost
        self.unread += cost
        if self._cost > DICTIONARY_FACTOR * seen + DICTIONARY_BYTES:
            raise BadArrow(
                "The dictionaries of the Arrow stream change too often. Send each dictionary once "
                "and whole, or send plain columns.",
                field="vectors",
            )
        if (
            self.held > self._most
            or self.unread > DICTIONARY_FACTOR * self._most + DICTIONARY_BYTES
        ):
            raise BodyTooLarge(
                f"The dictionaries exceed the limit of {self._most} bytes. Send plain columns.",
                field="vectors",
                limit=self._most,
            )
        self.new.update(columns)

    def were_read(self) -> None:
        """Notes that a batch was read, and all dictionaries with it."""
        self.new.clear()
        self.unread = 0


def metadata_size(head: bytes) -> int:
    """Returns the length of a message's metadata, from the bytes before it. Raises BadArrow."""
    mark, size = struct.unpack("<ii", head) if len(head) == FRAME_BYTES else (0, 0)
    if mark != -1 or not 0 <= size <= MOST_METADATA_BYTES:
        raise BadArrow(
            "The body is not an Arrow IPC stream: a message does not begin with its marker.",
            field="vectors",
        )
    return int(size)


def next_frame(data: bytes | bytearray | memoryview, start: int) -> Frame | None:
    """Returns the message at `start`; None if its metadata is not complete. Raises BadArrow."""
    head = bytes(data[start : start + FRAME_BYTES])
    if len(head) < FRAME_BYTES:
        return None
    size = metadata_size(head)
    begin = start + FRAME_BYTES + size
    if size == 0:
        return Frame(END_OF_STREAM, start, begin)
    metadata = bytes(data[start + FRAME_BYTES : begin])
    return None if len(metadata) < size else _describe(metadata, start, begin)


def layout_of(message: bytes | memoryview) -> Layout:
    """Returns the size of a schema. Raises BadArrow for view types and for too many fields."""
    metadata = bytes(message[FRAME_BYTES:])
    try:
        return _Counter(MOST_FIELDS).layout(_Table.root(metadata).table(2))
    except _UNREADABLE as error:
        raise _unreadable(error) from None


_UNREADABLE = (struct.error, IndexError, ValueError, TypeError)


def _unreadable(error: Exception) -> BadArrow:
    return BadArrow(
        f"The metadata of an Arrow message is damaged: {str(error)[:100]}.", field="vectors"
    )


def _describe(metadata: bytes, start: int, begin: int) -> Frame:
    """Returns the frame of a message whose body begins at `begin`. Raises BadArrow."""
    rows, dictionary, adds, packed, longer = 0, 0, False, False, False
    try:
        message = _Table.root(metadata)
        kind, length = message.byte(1), message.long(3)
        _Counter(MOST_ENTRIES).entries(message, 4)
        content = batch = message.table(2)
        if kind == DICTIONARY and content is not None:
            batch = content.table(1)
            dictionary, adds = content.long(0), bool(content.byte(2))
        if kind in (DICTIONARY, BATCH) and batch is not None:
            rows, packed, longer = batch.long(0), batch.has(3), _buffer_bytes(batch) > length
    except _UNREADABLE as error:
        raise _unreadable(error) from None
    if kind not in (SCHEMA, DICTIONARY, BATCH) or length < 0 or rows < 0:
        raise BadArrow(
            "An Arrow stream may hold only a schema, dictionaries and record batches.",
            field="vectors",
        )
    if packed:
        raise BadArrow(
            "The record batches are compressed. Write them without compression.",
            field="vectors",
        )
    if longer:
        raise BadArrow(
            "The buffers of a record batch overlap: they are longer than its body.", field="vectors"
        )
    return Frame(kind, start, begin + length, rows, dictionary, adds)


def _buffer_bytes(batch: _Table) -> float:
    """Returns the sum of a batch's buffer lengths; infinite if one is negative."""
    start, count = batch.span(2)
    lengths = np.frombuffer(batch.part(start, 16 * count), "<i8", 2 * count)[1::2]
    return float("inf") if count and lengths.min() < 0 else float(lengths.sum(dtype=np.float64))


class _Counter:
    """Counts the fields, entries and text of a message.

    Raises BadArrow above `most` fields and entries, or MOST_METADATA_BYTES of text.
    """

    def __init__(self, most: int) -> None:
        self._most, self._count, self._text = most, 0, 0

    def layout(self, schema: _Table | None) -> Layout:
        found = Layout()
        if schema is None:
            return found
        self.entries(schema, 2)
        rest = list(enumerate(self._children(schema, 1)))
        if len(rest) > MOST_COLUMNS:
            detail = f"The Arrow schema has more than {MOST_COLUMNS} columns, the limit."
            raise BadArrow(detail, field="vectors")
        while rest:
            column, each = rest.pop()
            self._field(each)
            if (encoding := each.table(4)) is not None:
                found.dictionaries.setdefault(encoding.long(0), []).append(column)
            rest.extend((column, child) for child in self._children(each, 5))
        found.fields = self._count
        return found

    def entries(self, of: _Table, slot: int) -> None:
        """Counts the keys and values of metadata."""
        for entry in self._children(of, slot):
            self._string(entry, 0)
            self._string(entry, 1)

    def _field(self, each: _Table) -> None:
        kind = each.byte(2)
        name = self._string(each, 0)
        if kind in VIEWS:
            raise BadArrow(
                f"The field {name[:100].decode(errors='replace')!r} has the type {VIEWS[kind]}. "
                "Cast it to string, binary or list; in Polars, write with CompatLevel.oldest().",
                field="vectors",
            )
        if kind == TIMESTAMP and (about := each.table(3)) is not None:
            self._string(about, 1)
        self.entries(each, 6)

    def _children(self, of: _Table, number: int) -> Iterator[_Table]:
        start, count = of.span(number)
        self._count += count
        if self._count > self._most:
            raise BadArrow(
                f"An Arrow message has more than {self._most} fields and entries of metadata.",
                field="vectors",
            )
        return (of.element(start + 4 * place) for place in range(count))

    def _string(self, of: _Table, number: int) -> bytes:
        start, size = of.span(number)
        self._text += size
        if self._text > MOST_METADATA_BYTES:
            raise BadArrow(
                f"An Arrow message has over {MOST_METADATA_BYTES} bytes of names and metadata.",
                field="vectors",
            )
        return bytes(of.part(start, size))
