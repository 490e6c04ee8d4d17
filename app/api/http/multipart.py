"""multipart/form-data: a part `request` that holds a JSON body, and files, each of them one of its `inputs`.

Starlette's form parser is not used: it accepts a body that is cut off, without the file in which it ends.
"""

from __future__ import annotations

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from app.errors import BodyTooLarge, MalformedParts

MEDIA = "multipart/form-data"

#: names of the parts
REQUEST, FILES = "request", "inputs"

#: parts of one body, and bytes of one part's headers
MOST_PARTS = 4_096
MOST_HEADER_BYTES = 4_096


class _Parts:
    """Collects parts as the parser finds them."""

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
        if self._count > MOST_PARTS:
            raise BodyTooLarge(f"a body of more than {MOST_PARTS} parts", limit=MOST_PARTS)
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
            raise MalformedParts(f"expected parts named {REQUEST} and {FILES}, got {name[:100]!r}")
        if name == FILES:
            self.files.append(bytes(self._data))
        elif self.request is None:
            self.request = bytes(self._data)
        else:
            raise MalformedParts(f"more than one part named {REQUEST}")

    def on_end(self) -> None:
        self.ended = True

    def _grow(self, place: int, data: bytes) -> None:
        self._header[place].extend(data)
        if len(self._header[place]) > MOST_HEADER_BYTES:
            raise MalformedParts("a part's header is too long")


def split(content_type: str, data: bytes | memoryview) -> tuple[bytes, list[bytes]]:
    """The JSON text of the part `request`, and the files in their order. Raises Malformed, BodyTooLarge."""
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if not 1 <= len(boundary) <= 70:
        raise MalformedParts("multipart/form-data without a boundary of 1 to 70 characters")
    parts = _Parts()
    names = ("on_part_begin", "on_part_data", "on_part_end", "on_header_begin", "on_header_field", "on_header_value",
             "on_header_end", "on_end")  # fmt: skip
    try:
        parser = MultipartParser(boundary, {name: getattr(parts, name) for name in names})  # type: ignore[arg-type]
        parser.write(bytes(data))
        parser.finalize()
    except (FormParserError, UnicodeDecodeError, ValueError) as error:
        raise MalformedParts(
            f"the body is not multipart/form-data: {type(error).__name__}"
        ) from None
    if not parts.ended or parts.request is None:
        raise MalformedParts(
            f"the body has no part named {REQUEST}, or ends before its last boundary"
        )
    return parts.request, parts.files
