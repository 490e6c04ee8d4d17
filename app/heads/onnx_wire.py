"""The wire format of an ONNX file, walked before protobuf parses it: two bytes can parse into a hundred."""

from __future__ import annotations

from typing import Any

from app.errors import InvalidHead

#: fields in the whole file: a thousand nodes with their attributes and notes need a tenth of it
MOST_FIELDS = 100_000
DEEPEST = 16
#: bytes of a string or a list that is no tensor's data
LONGEST = 2**20
#: what weights are written in
DATA = {"raw_data", "float_data", "double_data"}

Table = dict[int, tuple[Any, bool, bool]]
UNKNOWN = (None, False, False)
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def refuse() -> InvalidHead:
    return InvalidHead("not an ONNX model", field="onnx")


def check(data: bytes, message: Any) -> None:
    """Walk every field of a message of that protobuf descriptor. Raises InvalidHead unless it is well formed and small."""
    tables = {message.full_name: _table(message)}
    pending = [(0, len(data), tables[message.full_name], 0)]
    fields = 0
    while pending:
        place, end, table, depth = pending.pop()
        while place < end:
            fields += 1
            if fields > MOST_FIELDS or depth > DEEPEST:
                raise InvalidHead("the model has too many or too deeply nested parts", field="onnx")
            tag, place = (data[place], place + 1) if data[place] < 0x80 else _varint(data, place, end)
            number, kind = tag >> 3, tag & 7
            if kind == VARINT:
                _, place = _varint(data, place, end)
            elif kind in (FIXED32, FIXED64):
                place += 4 if kind == FIXED32 else 8
            elif kind == BYTES:
                if place < end and data[place] < 0x80:
                    size, start = data[place], place + 1
                else:
                    size, start = _varint(data, place, end)
                place = start + size
                inner, text, whole = table.get(number, UNKNOWN)
                if inner is not None:
                    if inner.full_name not in tables:
                        tables[inner.full_name] = _table(inner)
                    pending.append((start, place, tables[inner.full_name], depth + 1))
                elif size > LONGEST and not whole:
                    raise InvalidHead("the model has a text or a list of whole numbers of more than 1 MiB", field="onnx")
                elif text and not _is_text(data[start:place]):
                    raise refuse()
            else:
                raise refuse()
            if place > end:
                raise refuse()


def _table(message: Any) -> Table:
    """Field number -> the message that it holds, if it holds one; whether it is a text; whether it may be long."""
    return {field.number: (field.message_type, field.type == field.TYPE_STRING, field.name in DATA) for field in message.fields}


def _is_text(data: bytes) -> bool:
    """Protobuf itself lets other bytes through, and fails when they are read."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _varint(data: bytes, place: int, end: int) -> tuple[int, int]:
    """A number in base 128, lowest digits first, and the place after it."""
    value = 0
    for shift in range(0, 70, 7):
        if place >= end:
            break
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise refuse()
