"""Image files as clients send them: what is accepted, at which size, and the pixels that a model
reads.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal

from app.errors import AnchorageError, EncoderUnavailable, ImageTooLarge, InvalidImage

if TYPE_CHECKING:
    from PIL.Image import Image

# Of a stranger's file Pillow can have thousands of warnings: they would fill the log, and the table
# of those that were shown.
warnings.filterwarnings("ignore", module=r"PIL\.")

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
#: most pieces that a file may be read in (a chunk of a PNG takes three), and most segments of a
#: JPEG: each costs some microseconds, whatever it holds
READS = 80_000
#: most scans of a JPEG: each one is a pass over the whole picture, and encoders write about ten
SCANS = 50

Mode = Literal["L", "RGB"]


@dataclass(frozen=True)
class Limits:
    """Of one image: the bytes of its file, and the pixels that it unpacks to."""

    bytes: int = 10 * 1024 * 1024
    pixels: int = 25_000_000


DEFAULT_LIMITS = Limits()


class _File(BytesIO):
    """A file that ends its reader when it comes for too many pieces."""

    reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.reads += 1
        if self.reads > READS:
            raise InvalidImage(
                f"the image's file has too many pieces: it takes more than {READS} reads"
            )
        return super().read(size)


def open_image(data: bytes, limits: Limits, mode: Mode = "RGB") -> Image:
    """The first picture of the file, decoded, upright, on white where it is transparent, in `mode`.

    Its header is read first: nothing is decoded of a picture that is too large. Raises
    ImageTooLarge and InvalidImage, and EncoderUnavailable without Pillow.
    """
    if not data:
        raise InvalidImage("the image is empty")
    if len(data) > limits.bytes:
        raise ImageTooLarge(
            f"the image's file has {len(data)} bytes; the limit is {limits.bytes}",
            limit=limits.bytes,
        )
    try:
        from PIL import Image as pillow  # noqa: N813
    except ImportError as error:
        raise EncoderUnavailable(
            "Pillow is not installed on the server: pip install 'anchorage-server[vision]'"
        ) from error
    try:
        image = pillow.open(_File(data), formats=FORMATS)
        _check_size(image, limits)
        if image.format in ("JPEG", "MPO"):
            _check_scans(data)
        image.load()
        return _flat(_upright(image), mode)
    except AnchorageError:
        raise
    except pillow.DecompressionBombError as error:
        raise ImageTooLarge(
            f"the image has more than {limits.pixels} pixels", limit=limits.pixels
        ) from error
    except Exception as error:  # whatever a broken file makes a decoder raise
        raise InvalidImage(
            "the input is no PNG, JPEG, WebP or GIF image, or a damaged one"
        ) from error


def _check_size(image: Image, limits: Limits) -> None:
    width, height = image.size
    if not width or not height:
        raise InvalidImage("the image has no pixels")
    if width * height > limits.pixels:
        raise ImageTooLarge(
            f"the image has {width} x {height} pixels; the limit is {limits.pixels}",
            limit=limits.pixels,
        )


#: a marker other than the restarts inside a scan; a scan's own 0xff is followed by 0
_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")
_SCAN, _END, _BARE = 0xDA, 0xD9, (0x01, 0xD8)


def _check_scans(data: bytes) -> None:
    """Raises InvalidImage for a JPEG of too many scans or segments."""
    scans = place = 0
    for _ in range(READS):
        found = _MARKER.search(data, place)
        code = data[found.end() - 1] if found else _END
        if found is None or code == _END:
            return
        scans += code == _SCAN
        if scans > SCANS:
            raise InvalidImage(f"the image has more than {SCANS} scans")
        place = found.end() + (
            0 if code in _BARE else int.from_bytes(data[found.end() : found.end() + 2], "big")
        )
    raise InvalidImage(f"the image has more than {READS} segments")


def _upright(image: Image) -> Image:
    """As the camera was held. Photographs whose EXIF cannot be read are common, and are taken as
    they are.
    """
    from PIL import ImageOps

    try:
        ImageOps.exif_transpose(image, in_place=True)
    except Exception:  # a stranger's TIFF directory, in as many ways broken as there are cameras
        return image
    return image


def _flat(image: Image, mode: Mode) -> Image:
    """Without transparency, 8 bits a channel, in `mode`."""
    from PIL import Image as pillow  # noqa: N813

    if image.mode.startswith("I"):
        # Pillow would cut 16 bits at 255; of colours it keeps the upper eight, and so do we.
        import numpy as np

        pixels: Any = np.asarray(image)
        image = pillow.fromarray((pixels >> 8).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        ground = pillow.new("RGB", image.size, "white")
        ground.paste(image, mask=image.getchannel("A"))
        image = ground
    elif image.mode == "P" and mode == "L":
        image = image.convert("RGB")
    return image.convert(mode) if image.mode != mode else image
