"""Checks and decodes the image files that clients send, and prepares the images for a timm model.

Pillow decodes and resizes without the interpreter's lock. One thread a core decodes images, in
turns of all requests. Large ones have two threads of their own: few are in memory, and no small one
waits behind them.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from io import BytesIO
from typing import TYPE_CHECKING, Any

from app.encoders.models.base import Input, Item
from app.encoders.models.torchvision_ops import import_timm
from app.errors import AnchorageError, EncoderUnavailable, ImageTooLarge, InvalidImage, InvalidInput
from app.lanes import Lanes

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

#: pixels of a patch's side: an image is as long as its number of patches
PATCH_SIDE = 16

#: most pixels of a small image. A decoding needs up to 20 bytes a pixel: 80 MB a thread
SMALL_IMAGE_PIXELS = 4_000_000

#: large images that are decoded at once: twice the most pixels of an image need up to a gigabyte
LARGE_AT_ONCE = 2


@cache
def _lanes() -> Lanes:
    return Lanes(name="images")


@cache
def _large_lanes() -> Lanes:
    return Lanes(LARGE_AT_ONCE, name="large images")


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


def open_image(data: bytes) -> Image:
    """Return the file's first image, whose header is checked and which is not decoded yet.

    Raises ImageTooLarge and InvalidImage.
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
        width, height = image.size
        if not width or not height:
            raise InvalidImage("The image has no pixels. Send an image of at least 1 x 1 pixels.")
        if width * height > MAX_IMAGE_PIXELS:
            raise ImageTooLarge(
                f"The image has {width} x {height} pixels; the limit is {MAX_IMAGE_PIXELS} in "
                "total. Send a smaller image.",
                limit=MAX_IMAGE_PIXELS,
            )
        if image.format in ("JPEG", "MPO"):
            _check_scans(data)
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


class ImagePreparer:
    """timm's own preprocessing: resize, crop the centre, normalise.

    Several threads may call its methods at once.

    config  from timm's `resolve_model_data_config`

    Raises EncoderUnavailable for a model that does not read colours, and any error of timm and
    torchvision for a configuration that is not valid.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        channels, height, width = config["input_size"]
        if channels != 3:
            raise EncoderUnavailable(
                f"The model reads images of {channels} channels. Name a model that reads 3, as "
                "almost all do.",
                field="model",
            )
        self.transform = import_timm("timm.data").create_transform(**config, is_training=False)
        self.size = (width, height)
        #: shorter side after a resize that keeps proportions
        self._scaled = int(max(height, width) / config["crop_pct"])

    def prepare(self, inputs: Sequence[Input]) -> list[Item]:
        """Decode and preprocess images, several at once. Raises InvalidInput for texts,
        InvalidImage and ImageTooLarge, which name the rows.
        """
        files = _require_images(inputs)
        items: dict[int, Item] = {}
        large: list[int] = []
        wrong: dict[int, AnchorageError] = {}

        def read(row: int, most: int) -> None:
            try:
                image = open_image(files[row])
                if max(image.size[0] * image.size[1], self._resized_pixels(image)) > most:
                    large.append(row)
                else:
                    items[row] = self._decode(image)
            except (InvalidImage, ImageTooLarge) as error:
                wrong[row] = error

        def read_large(place: int, _: int) -> None:
            read(large[place], MAX_IMAGE_PIXELS)

        _lanes().submit(lambda row, _: read(row, SMALL_IMAGE_PIXELS), len(files), step=1).result()
        _large_lanes().submit(read_large, len(large), step=1).result()
        if wrong:  # one error of the first one's class, with the rows of all of that class
            first = wrong[min(wrong)]
            rows = sorted(row for row, error in wrong.items() if type(error) is type(first))
            raise type(first)(first.detail, field="inputs", rows=rows, limit=first.limit)
        return [items[row] for row in range(len(files))]

    def _decode(self, image: Image) -> Item:
        decoded = decode_image(image)
        try:
            features = self.transform(decoded)
        except ValueError as error:  # a side shorter than one pixel
            raise InvalidImage(
                f"The image ({_size_of(image)}) cannot be resized for this model. Crop it."
            ) from error
        width, height = self.size
        return Item(features, length=max(1, height * width // PATCH_SIDE**2), tokens=0)

    def _resized_pixels(self, image: Image) -> int:
        """Raises ImageTooLarge: the resize scales both sides by scaled / shorter, which could
        exceed any memory.
        """
        resized = self._scaled**2 * max(image.size) // min(image.size)
        if resized > MAX_IMAGE_PIXELS:
            raise ImageTooLarge(
                f"The image is too long for its width ({_size_of(image)}): resized for this model "
                f"it would have more than {MAX_IMAGE_PIXELS} pixels. Crop it.",
                limit=MAX_IMAGE_PIXELS,
            )
        return resized


def _size_of(image: Image) -> str:
    return f"{image.size[0]} x {image.size[1]} pixels"


def _require_images(inputs: Sequence[Input]) -> list[bytes]:
    """Return the inputs. Raises InvalidInput for texts, and names their rows."""
    files = [value for value in inputs if isinstance(value, bytes)]
    if len(files) < len(inputs):
        raise InvalidInput(
            "This encoder reads images. Send image files, not texts.",
            field="inputs",
            rows=[row for row, value in enumerate(inputs) if not isinstance(value, bytes)],
        )
    return files
