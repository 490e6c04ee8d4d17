"""Outputs as PNG files."""

from __future__ import annotations

import sys
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from app.errors import InvalidHead
from app.heads.image import encode_png


@pytest.mark.parametrize("channels", [1, 3])
def test_a_written_image_reads_back_equal(channels):
    values = torch.arange(4 * 5 * channels).reshape(4, 5, channels).float() / 255
    with Image.open(BytesIO(encode_png(values, 0.0, 1.0))) as image:
        assert (image.format, image.size, image.mode) == (
            "PNG",
            (5, 4),
            "L" if channels == 1 else "RGB",
        )
        pixels = np.asarray(image).reshape(4, 5, channels)
    assert pixels.flatten().tolist() == list(range(20 * channels))


def test_values_outside_low_and_high_are_clamped():
    values = torch.tensor([-9.0, -1.0, 0.0, 1.0, 3e38])[None, :, None]
    with Image.open(BytesIO(encode_png(values, -1.0, 1.0))) as image:
        assert np.asarray(image).tolist() == [[0, 0, 128, 255, 255]]


@pytest.mark.parametrize(
    ("values", "low", "high", "says"),
    [
        (torch.zeros(2, 2, 2), 0.0, 1.0, "1 or 3 channels"),
        (torch.zeros(0, 2, 3), 0.0, 1.0, "at least one pixel"),
        (torch.zeros(2, 2, 3), 1.0, 1.0, "`low` must be less"),
        (torch.zeros(2, 2, 3), float("nan"), 1.0, "`low` must be less"),
        (torch.full((2, 2, 3), torch.nan), 0.0, 1.0, "NaN"),
        (torch.full((2, 2, 3), torch.inf), 0.0, 1.0, "infinity"),
    ],
)
def test_invalid_images_are_rejected(values, low, high, says):
    with pytest.raises(InvalidHead, match=says):
        encode_png(values, low, high)


def test_without_pillow_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(InvalidHead, match=r"anchorage-server\[vision\]"):
        encode_png(torch.zeros(2, 2, 3), 0.0, 1.0)
