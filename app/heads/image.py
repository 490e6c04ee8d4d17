"""Heads that answer images: numbers to PNG files."""

from __future__ import annotations

from importlib.util import find_spec
from io import BytesIO

import torch
from jaxtyping import Float32
from torch import Tensor

from app.errors import InvalidHead


def png(values: Float32[Tensor, "h w c"], low: float, high: float) -> bytes:
    """A PNG file of grey (c = 1) or RGB (c = 3) values: low is black, high full intensity, and what lies beyond is clamped.

    Raises InvalidHead.
    """
    if find_spec("PIL") is None:
        raise InvalidHead(
            "pillow is not installed on the server: pip install 'anchorage-server[vision]'",
            field="image",
        )
    from PIL import Image

    if values.shape[2] not in (1, 3) or 0 in values.shape:
        raise InvalidHead(
            f"an image has 1 or 3 channels and no empty side, got {list(values.shape)}",
            field="image",
        )
    if not low < high:
        raise InvalidHead("low must be less than high", field="image")
    if not bool(values.isfinite().all()):
        raise InvalidHead("the image holds NaN or infinity", field="image")
    pixels = ((values.double() - low) / (high - low) * 255).round().clamp(0, 255).to(torch.uint8)
    file = BytesIO()
    Image.fromarray((pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).numpy()).save(
        file, format="PNG"
    )
    return file.getvalue()
