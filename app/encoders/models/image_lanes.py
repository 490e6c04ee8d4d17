"""Threads that decode images: one a core, shared by all requests in turns.

Pillow decodes and resizes without the interpreter's lock. Small images wait only for a thread.
Large ones have two separate threads, so that a small image never waits behind them, and so that
few of them are in memory at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.encoders.models.base import EncoderModel, Input, Item
from app.encoders.models.images import LargeImage
from app.encoders.models.preprocessing import ImagePreparer, combine_errors, require_images
from app.errors import ImageTooLarge, InvalidImage
from app.lanes import Lanes
from app.types import InputRole

#: most pixels of a small image. A decoding needs up to 20 bytes a pixel: 80 MB a thread.
SMALL_IMAGE_PIXELS = 4_000_000

#: threads for large images: twice the most pixels of an image need up to a gigabyte
LARGE_LANES = 2


class ImageLanes:
    """The threads. The first images start them.

    count  threads for small images; None: as many as torch has
    """

    def __init__(self, count: int | None = None) -> None:
        self._small = Lanes(count, name="images")
        self._large = Lanes(LARGE_LANES, name="large-images")

    def prepare(self, model: EncoderModel, inputs: Sequence[Input], role: InputRole) -> list[Item]:
        """Return what `model.prepare` returns, or raise its errors; decode several images at once.

        A model without images prepares its inputs in this thread.
        """
        preparer = getattr(model, "preparer", None)
        if not isinstance(preparer, ImagePreparer):
            return model.prepare(inputs, role)
        files = require_images(inputs)
        items: dict[int, Item] = {}
        large: list[int] = []
        wrong: dict[int, InvalidImage | ImageTooLarge] = {}

        def decode(row: int, max_pixels: int | None = None) -> None:
            try:
                items[row] = preparer.prepare_one(files[row], max_pixels=max_pixels)
            except LargeImage:
                large.append(row)
            except (InvalidImage, ImageTooLarge) as error:
                wrong[row] = error

        self._small.submit(
            lambda row, _: decode(row, SMALL_IMAGE_PIXELS), len(files), step=1
        ).result()
        if large:
            self._large.submit(lambda place, _: decode(large[place]), len(large), step=1).result()
        if wrong:
            raise combine_errors(sorted(wrong.items()))
        return [items[row] for row in range(len(files))]

    def close(self) -> None:
        """Stop the threads after all queued work."""
        self._small.close()
        self._large.close()
