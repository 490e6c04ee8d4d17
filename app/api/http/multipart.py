"""multipart/form-data: a part `request` with a JSON body, and parts `inputs`, one file each.

Starlette's form parser would accept a truncated body, and drop its last file.
"""

from __future__ import annotations

from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from app.errors import BodyTooLarge, MalformedParts

#: names of the parts
REQUEST, FILES = "request", "inputs"

#: most parts of one body, and most bytes of one header of a part
MAX_PARTS = 4_096
MAX_PART_HEADER_BYTES = 4_096


class _Parts:
    """Collects the parts that the parser finds."""

    def __init__(self) -> None:
        self.request: bytes | None = None
        self.files: list[bytes] = []
        self.ended = False
        self._header = (bytearray(), bytearray())
        self._headers: dict[str, bytes] = {}
        self._data = bytearray()
        self._count = 0

    def on_part_begin(self) -> None:
        self._count += 1
        if self._count > MAX_PARTS:
            detail = f"The body has more than {MAX_PARTS} parts, the limit. Split it."
            raise BodyTooLarge(detail, limit=MAX_PARTS)
        self._headers, self._data = {}, bytearray()

    def on_header_begin(self) -> None:
        self._header = (bytearray(), bytearray())

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._grow(0, data[start:end])

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._grow(1, data[start:end])

    def on_header_end(self) -> None:
        name, value = self._header
        if len(self._headers) < 16:
            self._headers[name.decode("latin-1").lower()] = bytes(value)

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        self._data += data[start:end]

    def on_part_end(self) -> None:
        kind, options = parse_options_header(self._headers.get("content-disposition", b""))
        name = options.get(b"name", b"").decode("latin-1")
        if kind != b"form-data" or name not in (REQUEST, FILES):
            raise MalformedParts(
                f"The body has a part named {name[:100]!r}. Name the parts `{REQUEST}` (the JSON "
                f"fields) and `{FILES}` (one file each)."
            )
        if name == FILES:
            self.files.append(bytes(self._data))
        elif self.request is None:
            self.request = bytes(self._data)
        else:
            raise MalformedParts(f"The body has more than one part named `{REQUEST}`. Send one.")

    def on_end(self) -> None:
        self.ended = True

    def _grow(self, place: int, data: bytes) -> None:
        self._header[place].extend(data)
        if len(self._header[place]) > MAX_PART_HEADER_BYTES:
            raise MalformedParts(
                f"A header of a part has more than {MAX_PART_HEADER_BYTES} bytes, the limit."
            )


def split(content_type: str, data: bytes | memoryview) -> tuple[bytes, list[bytes]]:
    """Returns the JSON text of the part `request`, and the files in their order."""
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if not 1 <= len(boundary) <= 70:
        raise MalformedParts(
            "The Content-Type multipart/form-data needs a `boundary` of 1 to 70 characters."
        )
    parts = _Parts()
    callbacks: Any = {name: getattr(parts, name) for name in dir(parts) if name.startswith("on_")}
    try:
        parser = MultipartParser(boundary, callbacks)
        parser.write(bytes(data))
        parser.finalize()
    except (FormParserError, UnicodeDecodeError, ValueError) as error:
        raise MalformedParts(
            f"The body does not parse as multipart/form-data ({type(error).__name__})."
        ) from None
    if not parts.ended or parts.request is None:
        raise MalformedParts(
            f"The body has no part named `{REQUEST}`, or ends before its last boundary."
        )
    return parts.request, parts.files
