"""Small timm models for the tests, and images."""

from __future__ import annotations

import json
from io import BytesIO

import numpy as np
import pytest
import torch

from app.encoders.models.base import EncoderSpec, ModelSources
from app.encoders.models.pool import EncoderPool
from app.encoders.models.torchvision_ops import make_importable
from app.types import InputRole

make_importable()
timm = pytest.importorskip("timm")
Image = pytest.importorskip("PIL.Image")

ROLE = InputRole.document
RNG = np.random.default_rng(0)
PICTURES = [
    Image.fromarray(RNG.integers(0, 256, (side, 50, 3), dtype=np.uint8)) for side in (40, 50, 90)
]


def png(picture) -> bytes:
    file = BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


IMAGES = [png(picture) for picture in PICTURES]

SMALL = {"channels": [8, 8, 16, 24], "stem_width": 8}
SQUASHED = {"input_size": (3, 64, 48), "crop_mode": "squash", "interpolation": "bilinear"}
VIT = {"img_size": 32, "embed_dim": 24, "num_heads": 2}
#: name -> (timm's name, its arguments, its preprocessing, how it pools)
TINY = {
    "resnet": ("resnet10t", {**SMALL, "num_classes": 5}, {"input_size": (3, 40, 40)}, "avg"),
    "vit": (
        "vit_tiny_patch16_224",
        {**VIT, "patch_size": 8, "depth": 2, "num_classes": 7},
        None,
        "token",
    ),
    "no-classifier": (
        "convnext_atto",
        {"depths": [1, 1, 1, 1], "dims": [8, 8, 16, 16], "num_classes": 0},
        SQUASHED,
        "avg",
    ),
    "distilled": ("deit_tiny_distilled_patch16_224", {**VIT, "depth": 1}, None, "token"),
}


def save(model, folder, data=None) -> None:
    timm.models.save_for_hf(model, folder, safe_serialization=True, data_config=data)


def load(folder, name, device="cpu", **options):
    spec = EncoderSpec("timm", name, options=options)
    return EncoderPool(ModelSources(folder), device=device).get(spec)


def config_of(folder, name="vit"):
    return json.loads((folder / name / "config.json").read_text())


def encode(encoder, images) -> torch.Tensor:
    return encoder.run(encoder.prepare(images, ROLE), lambda: False)


def save_models(root):
    torch.manual_seed(0)
    for name, (architecture, arguments, data, _) in TINY.items():
        save(timm.create_model(architecture, **arguments), root / name, data)
