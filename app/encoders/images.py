"""Image files as clients send them: what is accepted, at which size, and the pixels a model reads.

A file is first read by its headers alone, here: its format, its size, and the pieces that make up its first picture. Only
those pieces reach Pillow's decoder of that one format: no text, colour profile, preview or later frame is ever unpacked, and
a file of a million empty pieces, or of a thousand scans, is refused before it costs anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from app.errors import AnchorageError, EncoderUnavailable, ImageTooLarge, InvalidImage

if TYPE_CHECKING:
    from PIL.Image import Image

#: most chunks, segments or blocks of one file; each costs the decoder some microseconds whatever it holds
PIECES = 20_000
#: most scans of a progressive JPEG: each one is a pass over the whole picture, and encoders write about ten
SCANS = 50

Mode = Literal["L", "RGB"]


@dataclass(frozen=True)
class Limits:
    """Of one image: the bytes of its file, and the pixels it unpacks to."""

    bytes: int = 10 * 1024 * 1024
    pixels: int = 25_000_000


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class Header:
    """What a file says of itself before it is decoded: `size` is (width, height), `data` the pieces of its first picture."""

    format: str
    size: tuple[int, int]
    data: bytes
    exif: bytes | None = None


def check(data: bytes, limits: Limits) -> Header:
    """The header of a file that may be decoded. Raises ImageTooLarge and InvalidImage; decodes nothing."""
    if not data:
        raise InvalidImage("the image is empty")
    if len(data) > limits.bytes:
        raise ImageTooLarge(f"the image's file has {len(data)} bytes; the limit is {limits.bytes}", limit=limits.bytes)
    try:
        header = _reader(data)(data)
    except IndexError as error:
        raise InvalidImage("the image's file ends too early") from error
    width, height = header.size
    if not width or not height:
        raise InvalidImage("the image has no pixels")
    if width * height > limits.pixels:
        raise ImageTooLarge(f"the image has {width} x {height} pixels; the limit is {limits.pixels}", limit=limits.pixels)
    return header


def open_image(data: bytes, limits: Limits, mode: Mode = "RGB") -> Image:
    """The picture, decoded, upright, on white where it is transparent, in `mode`. Raises ImageTooLarge and InvalidImage."""
    header = check(data, limits)
    try:
        image = _decode(header)
        return _upright(_flat(image, mode), header.exif or image.info.get("exif"))
    except AnchorageError:
        raise
    except Exception as error:  # whatever a broken file makes a decoder raise
        raise InvalidImage(f"the image is a damaged {header.format} file") from error


def _reader(data: bytes) -> Callable[[bytes], Header]:
    """By the first bytes: a name or a media type from outside says nothing."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return _png
    if data.startswith(b"\xff\xd8\xff"):
        return _jpeg
    if data.startswith((b"GIF87a", b"GIF89a")):
        return _gif
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return _webp
    raise InvalidImage("the input is no PNG, JPEG, WebP or GIF image")


def _number(data: bytes, place: int, length: int, order: Literal["big", "little"]) -> int:
    """Raises IndexError past the end, where a slice would be cut silently."""
    if place + length > len(data):
        raise IndexError(place)
    return int.from_bytes(data[place : place + length], order)


def _too_many_pieces() -> InvalidImage:
    return InvalidImage(f"the image's file is in more than {PIECES} pieces")


def _png(data: bytes) -> Header:
    """Chunks of (length, name, content, checksum). Kept: the first IHDR, the palette, transparency and pixels."""
    kept, exif, place = [data[:8]], None, 8
    if data[12:16] != b"IHDR":
        raise InvalidImage("the image is a damaged PNG file")
    size = _number(data, 16, 4, "big"), _number(data, 20, 4, "big")
    for _ in range(PIECES):
        if place + 12 > len(data):
            break  # the decoder will miss what is missing
        name, end = data[place + 4 : place + 8], place + 12 + _number(data, place, 4, "big")
        if name in (b"PLTE", b"tRNS", b"IDAT", b"IEND") or place == 8:
            kept.append(data[place:end])
        if name == b"eXIf":
            exif = data[place + 8 : end - 4]
        if name == b"IEND":
            break
        place = end
    else:
        raise _too_many_pieces()
    return Header("PNG", size, b"".join(kept), exif)


#: a marker other than the restarts inside a scan; a scan's own 0xff is followed by 0
_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SCAN, _END, _COMMENT, _EXIF, _JFIF, _ADOBE = 0xDA, 0xD9, 0xFE, 0xE1, 0xE0, 0xEE
_BARE = (0x01, 0xD8)


def _jpeg(data: bytes) -> Header:
    """Segments of (marker, length, content), scans' bits after theirs. Left out: comments and what applications add."""
    kept, exif, size, scans, place = [data[:2]], None, (0, 0), 0, 2
    for _ in range(PIECES):
        found = _MARKER.search(data, place)
        if scans:
            kept.append(data[place : found.start() if found else len(data)])
        if found is None:
            break
        start, code = found.start(), data[found.end() - 1]
        if code == _END:
            kept.append(data[start : start + 2])
            break
        place = start + 2 + (0 if code in _BARE else _number(data, start + 2, 2, "big"))
        if code in _FRAMES:
            size = _number(data, start + 7, 2, "big"), _number(data, start + 5, 2, "big")
        if code == _EXIF and data.startswith(b"Exif\0", start + 4):
            exif = data[start + 4 : place]
        if not (0xE0 <= code <= 0xEF or code == _COMMENT) or code in (_JFIF, _ADOBE):
            kept.append(data[start:place])
        scans += code == _SCAN
        if scans > SCANS:
            raise InvalidImage(f"the image has more than {SCANS} scans")
    else:
        raise _too_many_pieces()
    return Header("JPEG", size, b"".join(kept), exif)


_EXTENSION, _CONTROL, _PICTURE = 0x21, 0xF9, 0x2C


def _gif(data: bytes) -> Header:
    """Screen, palette, extensions of blocks, then the first picture. Kept of the extensions: which colour is transparent."""
    place = 13 + (3 << (data[10] & 7) + 1 if data[10] & 0x80 else 0)
    screen, control = data[10:place], b""
    for _ in range(PIECES):
        if data[place] != _EXTENSION:
            break
        if data[place + 1] == _CONTROL:
            # What to do with this picture before the next one (bits 2 to 4) does not matter: there is no next one.
            control = bytes([*data[place : place + 3], data[place + 3] & 0b11100011, *data[place + 4 : place + 8]])
        place = _after_blocks(data, place + 2)
    else:
        raise _too_many_pieces()
    if data[place] != _PICTURE:
        raise InvalidImage("the image is a GIF file without a picture")
    left, top, width, height = (_number(data, place + shift, 2, "little") for shift in (1, 3, 5, 7))
    # A picture may reach beyond its screen: the screen is drawn as large as it must be.
    size = max(_number(data, 6, 2, "little"), left + width), max(_number(data, 8, 2, "little"), top + height)
    if max(size) > 0xFFFF or not width or not height:
        raise InvalidImage("the image is a damaged GIF file")
    drawn = b"".join(side.to_bytes(2, "little") for side in size)
    return Header("GIF", size, data[:6] + drawn + screen + control + data[place:])


def _after_blocks(data: bytes, place: int) -> int:
    """Where a chain of (length, content) ends: at a length of 0."""
    for _ in range(PIECES):
        if not data[place]:
            return place + 1
        place += 1 + data[place]
    raise _too_many_pieces()


def _webp(data: bytes) -> Header:
    """The canvas's size stands in the first chunk: a lossy picture, a lossless one, or the extended header of any."""
    name = data[12:16]
    if name == b"VP8 ":
        size = _number(data, 26, 2, "little") & 0x3FFF, _number(data, 28, 2, "little") & 0x3FFF
    elif name == b"VP8L":
        bits = _number(data, 21, 4, "little")
        size = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    elif name == b"VP8X":
        size = _number(data, 24, 3, "little") + 1, _number(data, 27, 3, "little") + 1
    else:
        raise InvalidImage("the image is a damaged WEBP file")
    return Header("WEBP", size, data)


def _decode(header: Header) -> Image:
    """By the one decoder of the format, called by its class: Image.open would warn or refuse by a limit of the whole process."""
    try:
        from PIL.GifImagePlugin import GifImageFile
        from PIL.JpegImagePlugin import JpegImageFile
        from PIL.PngImagePlugin import PngImageFile
        from PIL.WebPImagePlugin import WebPImageFile
    except ImportError as error:
        raise EncoderUnavailable("Pillow is not installed on the server: pip install 'anchorage[vision]'") from error
    from io import BytesIO

    decoders: dict[str, Any] = {"PNG": PngImageFile, "JPEG": JpegImageFile, "GIF": GifImageFile, "WEBP": WebPImageFile}
    image: Image = decoders[header.format](BytesIO(header.data))
    if image.size != header.size:
        raise InvalidImage("the image says two sizes of itself")
    image.load()
    return image


def _flat(image: Image, mode: Mode) -> Image:
    """Without transparency, 8 bits a channel, in `mode`."""
    from PIL import Image as pillow  # noqa: N813

    if image.mode.startswith("I"):
        # Pillow would cut 16 bits at 255; of colours it keeps the upper eight, and so do we.
        import numpy as np

        image = pillow.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        ground = pillow.new("RGB", image.size, "white")
        ground.paste(image, mask=image.getchannel("A"))
        image = ground
    elif image.mode == "P" and mode == "L":
        image = image.convert("RGB")
    return image.convert(mode) if image.mode != mode else image


#: EXIF's tag of which way is up, and by its value what turns the picture upright
_ORIENTATION = 0x0112
_TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}


def _upright(image: Image, exif: bytes | None) -> Image:
    """As the camera was held. Photographs whose EXIF cannot be read are common, and taken as they are."""
    from PIL.Image import Exif, Transpose

    try:
        tags = Exif()
        tags.load(exif or b"")
        turn = _TURNS.get(tags.get(_ORIENTATION, 1))
    except Exception:  # a stranger's TIFF directory, in as many ways broken as there are cameras
        return image
    return image.transpose(Transpose[turn]) if turn else image
