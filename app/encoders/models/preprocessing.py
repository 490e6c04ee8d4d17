"""Prepares images for a timm model.

Pillow decodes and resizes without the interpreter's lock. One thread a core decodes small images,
in turns of all requests. A request's own thread decodes its large ones, two at once in the process,
so that no small one waits behind them and few are in memory.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from app.encoders.models import images
from app.encoders.models.base import Input, Item
from app.encoders.models.images import decode_image, open_image
from app.encoders.models.torchvision_ops import import_timm
from app.errors import (
    AnchorageError,
    EncoderUnavailable,
    ImageTooLarge,
    InvalidImage,
    InvalidInput,
)
from app.lanes import Lanes

if TYPE_CHECKING:
    from PIL.Image import Image

#: pixels of a patch's side: an image is as long as its number of patches
PATCH_SIDE = 16

#: most pixels of a small image. A decoding needs up to 20 bytes a pixel: 80 MB a thread
SMALL_IMAGE_PIXELS = 4_000_000

#: large images that are decoded at once: twice the most pixels of an image need up to a gigabyte
_large = threading.Semaphore(2)


@cache
def _lanes() -> Lanes:
    return Lanes(name="images")


class ImagePreparer:
    """timm's own preprocessing: resize, crop the centre, normalise.

    Several threads may call its methods at once.

    config  from timm's `resolve_model_data_config`
    draft   whether JPEG files are decoded at a reduced size that is large enough

    Raises EncoderUnavailable for a model that does not read colours, and any error of timm and
    torchvision for a configuration that is not valid.
    """

    def __init__(self, config: Mapping[str, Any], *, draft: bool) -> None:
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
        self._draft_side = max(height, width, self._scaled) if draft else None

    def prepare(self, inputs: Sequence[Input]) -> list[Item]:
        """Decode and preprocess images, several at once. Raises InvalidInput for texts,
        InvalidImage and ImageTooLarge, which name the rows.
        """
        items: dict[int, Item] = {}
        small: list[tuple[int, Image]] = []
        large: list[tuple[int, Image]] = []
        wrong: dict[int, AnchorageError] = {}

        def decode(row: int, image: Image) -> None:
            try:
                items[row] = self._decode(image)
            except (InvalidImage, ImageTooLarge) as error:
                wrong[row] = error

        files = _require_images(inputs)
        for row, data in enumerate(files):
            try:
                image = open_image(data, self._draft_side)
                pixels = max(image.size[0] * image.size[1], self._resized_pixels(image))
                (small if pixels <= SMALL_IMAGE_PIXELS else large).append((row, image))
            except (InvalidImage, ImageTooLarge) as error:
                wrong[row] = error
        _lanes().submit(lambda place, _: decode(*small[place]), len(small), step=1).result()
        for row, image in large:
            with _large:
                decode(row, image)
        if wrong:
            raise _combine_errors(sorted(wrong.items()))
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
        if resized > images.MAX_IMAGE_PIXELS:
            raise ImageTooLarge(
                f"The image is too long for its width ({_size_of(image)}): resized for this model "
                f"it would have more than {images.MAX_IMAGE_PIXELS} pixels. Crop it.",
                limit=images.MAX_IMAGE_PIXELS,
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


def _combine_errors(wrong: Sequence[tuple[int, AnchorageError]]) -> AnchorageError:
    """Return one error of the first error's class, with the rows of all errors of that class."""
    first = wrong[0][1]
    rows = [row for row, error in wrong if type(error) is type(first)]
    detail = (
        first.detail
        if len(rows) == 1
        else f"{len(rows)} images cannot be read. The first: {first.detail}"
    )
    return type(first)(detail, field="inputs", rows=rows, limit=first.limit)
