"""Preprocessing of images: other transforms, drafts of JPEG files, and limits of pixels."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO

import pytest
import torch

from app.encoders.models.base import ModelIdentity
from app.encoders.models.images import ImageLimits, LargeImage
from app.encoders.models.preprocessing import ImagePreparer, timm_preprocessing
from app.encoders.models.torchvision_ops import make_importable
from app.errors import EncoderUnavailable

make_importable()
timm = pytest.importorskip("timm")
Image = pytest.importorskip("PIL.Image")
from timm.data import create_transform, resolve_model_data_config  # noqa: E402

from tests.encoders.models.timm_models import (  # noqa: E402
    IMAGES,
    PICTURES,
    ROLE,
    encode,
    load,
    png,
)


def torchvision_transform(folder, name):
    """The whole transform, which ends in ToTensor and Normalize."""
    model = timm.create_model(f"local-dir:{folder / name}", pretrained=True)
    config = resolve_model_data_config(model)
    return create_transform(**config, is_training=False)


def photograph(width: int, height: int, **options) -> bytes:
    """A JPEG with smooth areas and edges."""
    waves = torch.outer(torch.linspace(0, 9, height).sin(), torch.linspace(0, 7, width).cos())
    waves[height // 3 : height // 2, width // 4 :] = 0.5
    pixels = torch.stack([waves, waves.roll(width // 5, 1), -waves], 2) * 100 + 128
    file = BytesIO()
    Image.fromarray(pixels.to(torch.uint8).numpy()).save(file, "JPEG", **options)
    return file.getvalue()


def test_a_transform_that_ends_otherwise_keeps_its_numbers(folder):
    encoder = load(folder, "vit")
    expected = encode(encoder, IMAGES)
    whole = torchvision_transform(folder, "vit")
    encoder.preparer = ImagePreparer(
        replace(encoder.preparer.preprocessing, transform=whole, mean=None, std=None)
    )
    assert encoder.prepare(IMAGES, ROLE)[0].features.dtype == torch.float32
    assert torch.equal(encode(encoder, IMAGES), expected)


def test_a_std_of_zero_and_two_channels_are_refused():
    config = {"input_size": (3, 32, 32), "mean": (0.5,) * 3, "std": (0.0,) * 3, "crop_pct": 1.0}
    with pytest.raises(ValueError, match="std"):
        timm_preprocessing(config, draft=False)
    with pytest.raises(EncoderUnavailable, match="2 channels"):
        timm_preprocessing({**config, "input_size": (2, 32, 32)}, draft=False)


def test_a_draft_changes_only_jpeg_files_that_have_pixels_to_spare(folder):
    exact, draft = (load(folder, "resnet", draft=value) for value in (False, True))
    side = draft.preparer.preprocessing.draft_side
    assert side == exact.preparer.preprocessing.scaled
    for file in (
        png(PICTURES[0]),
        photograph(4 * side, 2 * side - 1),
        photograph(side, 9 * side),
        photograph(side // 2, side // 2),
    ):
        [one], [two] = exact.prepare([file], ROLE), draft.prepare([file], ROLE)
        assert torch.equal(one.features, two.features)
    for large in (photograph(4 * side, 2 * side), photograph(20 * side, 30 * side)):
        [one], [two] = exact.prepare([large], ROLE), draft.prepare([large], ROLE)
        assert not torch.equal(one.features, two.features)
        assert (one.features.float() - two.features.float()).abs().mean() < 3


def test_a_long_image_counts_the_pixels_to_which_it_is_resized(folder):
    preparer = load(folder, "resnet").preparer
    long, side = png(Image.new("L", (900, 2))), preparer.preprocessing.scaled
    with pytest.raises(LargeImage) as caught:
        preparer.prepare_one(long, max_pixels=100_000)
    assert caught.value.pixels == side * side * 450 > 100_000
    assert preparer.prepare_one(long).features.shape == (3, 40, 40)


def test_a_draft_counts_the_pixels_that_it_decodes(folder):
    file = photograph(640, 480)
    exact, draft = (load(folder, "resnet", draft=value).preparer for value in (False, True))
    with pytest.raises(LargeImage) as caught:
        exact.prepare_one(file, max_pixels=100_000)
    assert caught.value.pixels == 640 * 480
    draft.prepare_one(file, max_pixels=640 * 480 // 64)
    assert exact.prepare_one(file, max_pixels=640 * 480).length > 0
    # The limit counts the pixels of the file: a reduced size does not admit more.
    limited = ImagePreparer(draft.preprocessing, ImageLimits(pixels=640 * 480 - 1))
    with pytest.raises(Exception, match="640 x 480 pixels"):
        limited.prepare([file], ROLE)


def test_a_draft_is_part_of_the_identity(folder):
    plain, draft = (load(folder, "vit", draft=value).identity for value in (False, True))
    assert plain.fingerprint != draft.fingerprint
    assert draft.members == {**plain.members, "draft": True}
    assert ModelIdentity(**draft.members) == draft
