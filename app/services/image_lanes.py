"""Threads that decode images: one a core, shared by all requests in turns.

Pillow decodes and resizes without the interpreter's lock. Small images wait only for a thread.
Large ones have separate threads, where they also wait for memory, so that a small image never
waits behind them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from app.encoders.base import EncoderModel, Input, Item
from app.encoders.images import LargeImage
from app.encoders.preprocessing import ImagePreparer, combine_errors, require_images
from app.errors import ImageTooLarge, InvalidImage
from app.services.lanes import Lanes
from app.types import InputRole

#: most pixels of a small image. A decoding needs up to 20 bytes a pixel: 80 MB a thread.
SMALL_IMAGE_PIXELS = 4_000_000

#: most pixels of large images that are decoded at once: up to a gigabyte
LARGE_IMAGES_PIXELS = 50_000_000


class PixelBudget:
    """Pixels that may be decoded at once. A small request never overtakes one that waits."""

    def __init__(self, pixels: int) -> None:
        self._most = self._free = pixels
        self._turn = threading.Lock()
        self._changed = threading.Condition()

    @contextmanager
    def take(self, pixels: int) -> Iterator[None]:
        """Reserve pixels within this block, and wait until they are free."""
        pixels = min(pixels, self._most)
        with self._turn, self._changed:
            self._changed.wait_for(lambda: self._free >= pixels)
            self._free -= pixels
        try:
            yield
        finally:
            with self._changed:
                self._free += pixels
                self._changed.notify()


class ImageLanes:
    """The threads. The first images start them.

    count  threads for small images, and as many for large ones; None: as many as torch has
    """

    def __init__(self, count: int | None = None) -> None:
        self._small, self._large = Lanes(count, name="images"), Lanes(count, name="large-images")
        self._memory = PixelBudget(LARGE_IMAGES_PIXELS)

    def prepare(self, model: EncoderModel, inputs: Sequence[Input], role: InputRole) -> list[Item]:
        """Return what `model.prepare` returns, or raise its errors; decode several images at once.

        A model without images prepares its inputs in this thread.
        """
        preparer = getattr(model, "preparer", None)
        if not isinstance(preparer, ImagePreparer):
            return model.prepare(inputs, role)
        files = require_images(inputs)
        items: dict[int, Item] = {}
        large: dict[int, int] = {}
        wrong: dict[int, InvalidImage | ImageTooLarge] = {}

        def decode(row: int, most_pixels: int | None = None) -> None:
            try:
                items[row] = preparer.prepare_one(files[row], most_pixels=most_pixels)
            except LargeImage as image:
                large[row] = image.pixels
            except (InvalidImage, ImageTooLarge) as error:
                wrong[row] = error

        def decode_large(place: int, _: int) -> None:
            row, pixels = waiting[place]
            with self._memory.take(pixels):
                decode(row)

        self._small.submit(
            lambda row, _: decode(row, SMALL_IMAGE_PIXELS), len(files), step=1
        ).result()
        waiting = list(large.items())
        if waiting:
            self._large.submit(decode_large, len(waiting), step=1).result()
        if wrong:
            raise combine_errors(sorted(wrong.items()))
        return [items[row] for row in range(len(files))]

    def close(self) -> None:
        """Stop the threads after all queued work."""
        self._small.close()
        self._large.close()
