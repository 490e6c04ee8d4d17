"""Checks and decodes the image files that clients send."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from typing import TYPE_CHECKING, Any

from app.errors import AnchorageError, ImageTooLarge, InvalidImage

if TYPE_CHECKING:
    from PIL.Image import Image

# A hostile file can cause thousands of warnings, which would fill the log and Python's table of
# shown warnings.
warnings.filterwarnings("ignore", module=r"PIL\.")

IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
#: most bytes of one image's file, and most pixels of the decoded image
MAX_IMAGE_BYTES, MAX_IMAGE_PIXELS = 10 * 1024 * 1024, 25_000_000
#: most reads of one file (a PNG chunk takes three), and most segments of a JPEG: each read costs
#: some microseconds, however small it is
MAX_READS = 80_000
#: most scans of a JPEG: each scan is a pass over the whole image, and encoders write about ten
MAX_SCANS = 50


class _File(BytesIO):
    """A file in memory that raises InvalidImage after MAX_READS reads."""

    reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.reads += 1
        if self.reads > MAX_READS:
            raise InvalidImage(
                f"The image file takes more than {MAX_READS} reads. Save the image again."
            )
        return super().read(size)


def open_image(data: bytes, draft_side: int | None = None) -> Image:
    """Return the file's first image, whose header is checked and which is not decoded yet.

    Raises ImageTooLarge and InvalidImage.

    draft_side  decode a JPEG at 1/8, 1/4 or 1/2 of its size, the smallest whose shorter side has at
                least this number of pixels
    """
    from PIL import Image as pillow  # noqa: N813

    if not data:
        raise InvalidImage("The image file is empty. Send a PNG, JPEG, WebP or GIF file.")
    if len(data) > MAX_IMAGE_BYTES:
        raise ImageTooLarge(
            f"The image file has {len(data)} bytes; the limit is {MAX_IMAGE_BYTES}. "
            "Send a smaller file.",
            limit=MAX_IMAGE_BYTES,
        )
    with _refusing():
        image = pillow.open(_File(data), formats=IMAGE_FORMATS)
        _check_size(image)
        if image.format in ("JPEG", "MPO"):
            _check_scans(data)
            if draft_side is not None:
                image.draft(None, (draft_side, draft_side))
        return image


def decode_image(image: Image) -> Image:
    """Return an opened image decoded and upright, in RGB, on white where transparent.

    Raises ImageTooLarge and InvalidImage.
    """
    with _refusing():
        image.load()
        return _flatten(_turn_upright(image))


@contextmanager
def _refusing() -> Iterator[None]:
    """Raise whatever Pillow raises as InvalidImage or ImageTooLarge."""
    from PIL.Image import DecompressionBombError

    try:
        yield
    except AnchorageError:
        raise
    except DecompressionBombError as error:
        raise ImageTooLarge(
            f"The image has more than {MAX_IMAGE_PIXELS} pixels, which is the limit. "
            "Send a smaller image.",
            limit=MAX_IMAGE_PIXELS,
        ) from error
    except Exception as error:  # a decoder may raise anything for a damaged file
        raise InvalidImage(
            "The input is not a PNG, JPEG, WebP or GIF image, or its file is damaged."
        ) from error


def _check_size(image: Image) -> None:
    width, height = image.size
    if not width or not height:
        raise InvalidImage("The image has no pixels. Send an image of at least 1 x 1 pixels.")
    if width * height > MAX_IMAGE_PIXELS:
        raise ImageTooLarge(
            f"The image has {width} x {height} pixels; the limit is {MAX_IMAGE_PIXELS} in total. "
            "Send a smaller image.",
            limit=MAX_IMAGE_PIXELS,
        )


#: any marker except the restart markers of a scan; a 0xff in a scan's data is followed by 0
_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")
_SCAN, _END, _BARE = 0xDA, 0xD9, (0x01, 0xD8)


def _check_scans(data: bytes) -> None:
    """Raises InvalidImage for a JPEG with too many scans or segments."""
    scans = place = 0
    for _ in range(MAX_READS):
        marker = _MARKER.search(data, place)
        code = data[marker.end() - 1] if marker else _END
        if marker is None or code == _END:
            return
        scans += code == _SCAN
        if scans > MAX_SCANS:
            raise InvalidImage(
                f"The JPEG image has more than {MAX_SCANS} scans. Save it as a baseline JPEG."
            )
        place = marker.end()
        if code not in _BARE:
            place += int.from_bytes(data[place : place + 2], "big")
    raise InvalidImage(f"The JPEG image has more than {MAX_READS} segments. Save it again.")


def _turn_upright(image: Image) -> Image:
    """Turn the image as its EXIF data says. An image with unreadable EXIF data stays as it is,
    because such photographs are common.
    """
    from PIL import ImageOps

    with suppress(Exception):  # broken EXIF data may raise anything
        ImageOps.exif_transpose(image, in_place=True)
    return image


def _flatten(image: Image) -> Image:
    """Convert the image to RGB: without transparency, 8 bits a channel."""
    from PIL import Image as pillow  # noqa: N813

    if image.mode.startswith("I"):
        # Keeps the upper eight of 16 bits, as Pillow does for colours. For grey images Pillow would
        # clip at 255.
        import numpy as np

        pixels: Any = np.asarray(image)
        image = pillow.fromarray((pixels >> 8).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        background = pillow.new("RGB", image.size, "white")
        background.paste(image, mask=image.getchannel("A"))
        image = background
    return image.convert("RGB")
