"""Encodes the outputs of image heads as PNG files."""

from __future__ import annotations

from importlib.util import find_spec
from io import BytesIO

import torch
from jaxtyping import Float32
from torch import Tensor

from app.errors import InvalidHead


def encode_png(values: Float32[Tensor, "h w c"], low: float, high: float) -> bytes:
    """Return a PNG file of grey (c = 1) or RGB (c = 3) values.

    `low` becomes black and `high` full intensity; values outside are clamped. Raises InvalidHead.
    """
    if find_spec("PIL") is None:
        raise InvalidHead(
            "Pillow is not installed on the server. "
            "Ask the operator to run: pip install 'anchorage-server[vision]'.",
            field="image",
        )
    from PIL import Image

    if values.shape[2] not in (1, 3) or 0 in values.shape:
        raise InvalidHead(
            "An image must have shape [height, width, channels] with 1 or 3 channels and at least "
            f"one pixel; got {list(values.shape)}.",
            field="image",
        )
    if not low < high:
        raise InvalidHead(
            f"`low` must be less than `high`; got {low:g} and {high:g}.", field="image"
        )
    if not bool(values.isfinite().all()):
        raise InvalidHead("The image contains NaN or infinity. Check the head.", field="image")
    pixels = ((values.double() - low) / (high - low) * 255).round().clamp(0, 255).to(torch.uint8)
    file = BytesIO()
    Image.fromarray((pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).numpy()).save(
        file, format="PNG"
    )
    return file.getvalue()
