"""Preprocessing of images: drafts of JPEG files, large images, and errors of several images."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import pytest
import torch

from app.encoders.models import images
from app.encoders.models.images import ImagePreparer
from app.encoders.models.torchvision_ops import make_importable
from app.errors import EncoderUnavailable, ImageTooLarge, InvalidImage

make_importable()
timm = pytest.importorskip("timm")
Image = pytest.importorskip("PIL.Image")

from tests.encoders.models.timm_models import PICTURES, ROLE, load, png  # noqa: E402

SOON_S = 20
STATISTICS = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
CONFIG = {"input_size": (3, 20, 20), "crop_pct": 1.0, "crop_mode": "squash", **STATISTICS}


def photograph(width: int, height: int, **options) -> bytes:
    """A JPEG with smooth areas and edges."""
    waves = torch.outer(torch.linspace(0, 9, height).sin(), torch.linspace(0, 7, width).cos())
    waves[height // 3 : height // 2, width // 4 :] = 0.5
    pixels = torch.stack([waves, waves.roll(width // 5, 1), -waves], 2) * 100 + 128
    file = BytesIO()
    Image.fromarray(pixels.to(torch.uint8).numpy()).save(file, "JPEG", **options)
    return file.getvalue()


def picture(width: int, height: int, shade: int = 0) -> bytes:
    return png(Image.new("RGB", (width, height), (shade, 90, 200)))


def test_other_models_than_of_colours_are_refused():
    with pytest.raises(EncoderUnavailable, match="1 channels"):
        ImagePreparer({**CONFIG, "input_size": (1, 32, 32)}, draft=False)


def test_a_draft_changes_only_jpeg_files_that_have_pixels_to_spare(folder, monkeypatch):
    exact, draft = (load(folder, "resnet", draft=value) for value in (False, True))
    side = draft.preparer._draft_side
    assert side == exact.preparer._scaled
    for file in (
        png(PICTURES[0]),
        photograph(4 * side, 2 * side - 1),
        photograph(side, 9 * side),
        photograph(side // 2, side // 2),
    ):
        [one], [two] = exact.prepare([file], ROLE), draft.prepare([file], ROLE)
        assert torch.equal(one.features, two.features)
    large = photograph(4 * side, 2 * side)
    [one], [two] = exact.prepare([large], ROLE), draft.prepare([large], ROLE)
    assert not torch.equal(one.features, two.features)
    assert (one.features - two.features).abs().mean() < 0.05
    # The limit counts the pixels of the file: a reduced size does not admit more.
    monkeypatch.setattr(images, "MAX_IMAGE_PIXELS", 8 * side**2 - 1)
    with pytest.raises(ImageTooLarge):
        draft.prepare([large], ROLE)


def test_items_have_the_order_of_the_inputs_and_large_images_delay_no_small_ones(monkeypatch):
    monkeypatch.setattr(images, "SMALL_IMAGE_PIXELS", 5_000)
    monkeypatch.setattr(images, "_large", threading.Semaphore(0))
    preparer = ImagePreparer(CONFIG, draft=False)
    small = [picture(20, 20 + place, place) for place in range(30)]
    # The second has few pixels, and many once it is resized.
    large = [picture(100, 60), png(Image.new("L", (900, 2)))]
    with ThreadPoolExecutor(6) as clients:
        waiting = [clients.submit(preparer.prepare, [*large, small[9]]) for _ in range(5)]
        items = clients.submit(preparer.prepare, small).result(timeout=SOON_S)
        assert not any(each.done() for each in waiting)
        images._large.release()
        for each in waiting:
            assert torch.equal(each.result(timeout=SOON_S)[2].features, items[9].features)
    alone = [preparer.prepare([file])[0].features for file in small]
    assert all(torch.equal(one.features, two) for one, two in zip(items, alone, strict=True))


@pytest.mark.parametrize(
    ("files", "error", "rows"),
    [
        (
            [picture(9, 9), b"none", picture(99, 90)[:-40], picture(9, 9), b""],
            InvalidImage,
            [1, 2, 4],
        ),
        ([picture(9, 9), picture(6_000, 6_000), b"none"], ImageTooLarge, [1]),
    ],
)
def test_an_error_names_all_rows_of_the_first_kind(files, error, rows):
    with pytest.raises(error) as caught:
        ImagePreparer(CONFIG, draft=False).prepare(files)
    assert (caught.value.rows, caught.value.field) == (rows, "inputs")
