"""The messages of an Arrow IPC stream: their frames, and what they would cost pyarrow, read before pyarrow sees a byte.

A flatbuffer may refer to one string or table any number of times, and a record batch to one range of its body: 900 kB can say
50 GB. So everything is counted as often as it is referred to. The numbers of kinds and slots are those of Schema.fbs and
Message.fbs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from app.errors import BadArrow, BodyTooLarge

#: bytes before each message, which hold the length of its metadata; and the most bytes of that metadata
FRAME_BYTES, MOST_METADATA_BYTES = 8, 2**20

#: columns of a stream; its fields, nested ones and entries of metadata included; and entries of metadata of any other message
MOST_COLUMNS, MOST_FIELDS, MOST_ENTRIES = 1_024, 4_096, 64

#: a dictionary is read again whenever it grows, with each field that uses it, and with the other dictionaries of their columns:
#: that may take as many bytes as the stream has had so far times this, and so many more; each use counts as so many at least
DICTIONARY_FACTOR, DICTIONARY_BYTES, USE_BYTES = 4, 2**20, 64

#: kinds of messages
END_OF_STREAM, SCHEMA, DICTIONARY, BATCH = 0, 1, 2, 3
END = b"\xff\xff\xff\xff\0\0\0\0"

#: a flatbuffer's numbers
UINT16, UINT32 = struct.Struct("<H").unpack_from, struct.Struct("<I").unpack_from
INT32, INT64 = struct.Struct("<i").unpack_from, struct.Struct("<q").unpack_from

#: kinds of types whose values may overlap, so that a few bytes stand for any number of them
VIEWS = {23: "binary_view", 24: "string_view", 25: "list_view", 26: "large_list_view"}
TIMESTAMP = 10


class _Table:
    """A flatbuffer's table: its fields by their numbers. Raises struct.error and ValueError for what leads out of the buffer."""

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
        """Where a vector or a text begins, and how many elements it has."""
        if not self.has(number):
            return 0, 0
        place = self._at(number)
        return place + 4, int(UINT32(self._data, place)[0])

    def element(self, place: int) -> _Table:
        """The table that a vector's element refers to."""
        return _Table(self._data, place + int(UINT32(self._data, place)[0]))

    def part(self, start: int, size: int) -> memoryview:
        return memoryview(self._data)[start : start + size]

    def _at(self, number: int) -> int:
        place: int = self._start + self._places[number]
        (more,) = UINT32(self._data, place)
        return place + int(more)


@dataclass(frozen=True)
class Frame:
    """Where a message lies in a stream; `rows` of a record batch, `dictionary` and `adds` (to what is there) of a dictionary."""

    kind: int
    start: int
    end: int
    rows: int = 0
    dictionary: int = 0
    adds: bool = False


@dataclass
class Layout:
    """fields        how many there are, nested ones and entries of metadata included
    dictionaries  by id, the columns that use a dictionary, once for each use
    """

    fields: int = 0
    dictionaries: dict[int, list[int]] = field(default_factory=dict)


class Dictionaries:
    """What the dictionaries of a stream hold, and what reading them has cost so far; `most` bytes in all of them are allowed.

    columns  those that have dictionaries
    new      those whose dictionaries have changed since the last batch
    held     bytes of all dictionaries
    unread   what the next batch will cost because of those that have changed
    """

    def __init__(self, uses: Mapping[int, Sequence[int]], most: int) -> None:
        self.columns = frozenset(column for columns in uses.values() for column in columns)
        self.new: set[int] = set()
        self.held = self.unread = 0
        self._uses, self._most, self._cost = uses, most, 0
        self._sizes: dict[int, int] = {}
        self._column_sizes = dict.fromkeys(self.columns, 0)

    def add(self, frame: Frame, seen: int) -> None:
        """Count one that comes after `seen` bytes of the stream. Raises BadArrow, BodyTooLarge."""
        columns = self._uses.get(frame.dictionary)
        if columns is None:
            raise BadArrow("a dictionary that no column uses", field="vectors")
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
                "dictionaries that would be read too often: send each of them whole and once, or plain columns instead",
                field="vectors",
            )
        if (
            self.held > self._most
            or self.unread > DICTIONARY_FACTOR * self._most + DICTIONARY_BYTES
        ):
            raise BodyTooLarge(
                f"dictionaries of more than {self._most} bytes", field="vectors", limit=self._most
            )
        self.new.update(columns)

    def were_read(self) -> None:
        """A batch has come."""
        self.new.clear()
        self.unread = 0


def metadata_size(head: bytes) -> int:
    """The length of a message's metadata, from the bytes before it. Raises BadArrow."""
    mark, size = struct.unpack("<ii", head) if len(head) == FRAME_BYTES else (0, 0)
    if mark != -1 or not 0 <= size <= MOST_METADATA_BYTES:
        raise BadArrow(
            "this is no Arrow IPC stream: a message does not begin as one", field="vectors"
        )
    return int(size)


def next_frame(data: bytes | bytearray | memoryview, start: int) -> Frame | None:
    """The message that begins at `start`, or None if more bytes are needed to tell its length. Raises BadArrow."""
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
    """The fields and dictionaries of a schema's message. Raises BadArrow for views, and for more fields than are allowed."""
    metadata = bytes(message[FRAME_BYTES:])
    try:
        return _Counter(MOST_FIELDS).layout(_Table.root(metadata).table(2))
    except _UNREADABLE as error:
        raise _unreadable(error) from None


_UNREADABLE = (struct.error, IndexError, ValueError, TypeError)


def _unreadable(error: Exception) -> BadArrow:
    return BadArrow(
        f"the metadata of a message cannot be read: {str(error)[:100]}", field="vectors"
    )


def _describe(metadata: bytes, start: int, begin: int) -> Frame:
    """The frame of a message whose body begins at `begin`. Raises BadArrow."""
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
            "a stream holds a schema, dictionaries and record batches, nothing else",
            field="vectors",
        )
    if packed:
        raise BadArrow(
            "compressed record batches are not read: write them without compression",
            field="vectors",
        )
    if longer:
        raise BadArrow(
            "the buffers of a record batch are longer than its body: they overlap", field="vectors"
        )
    return Frame(kind, start, begin + length, rows, dictionary, adds)


def _buffer_bytes(batch: _Table) -> float:
    """The lengths of a batch's buffers together; infinite where one is negative."""
    start, count = batch.span(2)
    lengths = np.frombuffer(batch.part(start, 16 * count), "<i8", 2 * count)[1::2]
    return float("inf") if count and lengths.min() < 0 else float(lengths.sum(dtype=np.float64))


class _Counter:
    """Walks a schema; stops at more fields and entries than `most`, or at more text than a message's metadata can hold."""

    def __init__(self, most: int) -> None:
        self._most, self._count, self._text = most, 0, 0

    def layout(self, schema: _Table | None) -> Layout:
        found = Layout()
        if schema is None:
            return found
        self.entries(schema, 2)
        rest = list(enumerate(self._children(schema, 1)))
        if len(rest) > MOST_COLUMNS:
            raise BadArrow(f"more than {MOST_COLUMNS} columns", field="vectors")
        while rest:
            column, each = rest.pop()
            self._field(each)
            if (encoding := each.table(4)) is not None:
                found.dictionaries.setdefault(encoding.long(0), []).append(column)
            rest.extend((column, child) for child in self._children(each, 5))
        found.fields = self._count
        return found

    def entries(self, of: _Table, slot: int) -> None:
        """Count the keys and values of metadata."""
        for entry in self._children(of, slot):
            self._string(entry, 0)
            self._string(entry, 1)

    def _field(self, each: _Table) -> None:
        kind = each.byte(2)
        name = self._string(each, 0)
        if kind in VIEWS:
            raise BadArrow(
                f"the field {name[:100].decode(errors='replace')!r} has the type {VIEWS[kind]}, which is not read: "
                "cast it to string, binary or list (in Polars, write with CompatLevel.oldest())",
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
                f"more than {self._most} fields and entries of metadata in one message",
                field="vectors",
            )
        return (of.element(start + 4 * place) for place in range(count))

    def _string(self, of: _Table, number: int) -> bytes:
        start, size = of.span(number)
        self._text += size
        if self._text > MOST_METADATA_BYTES:
            raise BadArrow(
                f"more than {MOST_METADATA_BYTES} bytes of names and metadata in one message",
                field="vectors",
            )
        return bytes(of.part(start, size))
