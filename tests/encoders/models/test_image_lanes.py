"""Images of one request in several threads: the same items and errors, and no queue behind large
images.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import pytest
import torch

from app.encoders.models import image_lanes
from app.encoders.models.image_lanes import LARGE_LANES, ImageLanes
from app.encoders.models.preprocessing import ImagePreparer, timm_preprocessing
from app.encoders.models.torchvision_ops import make_importable
from app.errors import ImageTooLarge, InvalidImage
from app.types import InputRole

make_importable()
Image = pytest.importorskip("PIL.Image")
pytest.importorskip("timm")

SOON_S = 20
ROLE = InputRole.document


class Model:
    """A model's images, without the model."""

    def __init__(self) -> None:
        statistics = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
        config = {"input_size": (3, 20, 20), "crop_pct": 1.0, "crop_mode": "squash", **statistics}
        self.preparer = ImagePreparer(timm_preprocessing(config, draft=False))

    def prepare(self, inputs, role):
        return self.preparer.prepare(inputs, role)


def picture(width: int, height: int, shade: int = 0) -> bytes:
    file = BytesIO()
    Image.new("RGB", (width, height), (shade, 90, 200)).save(file, "PNG")
    return file.getvalue()


SMALL = [picture(20, 20 + place, place) for place in range(30)]
LARGE = [picture(100, 60 + place, place) for place in range(3)]


@pytest.fixture
def lanes(monkeypatch):
    """Lanes for which 5,000 pixels are many."""
    monkeypatch.setattr(image_lanes, "SMALL_IMAGE_PIXELS", 5_000)
    made = ImageLanes(3)
    yield made
    made.close()


def test_items_are_those_of_one_thread_in_the_order_of_the_inputs(lanes):
    files = [*SMALL[:5], LARGE[0], *SMALL[5:], *LARGE[1:]]
    expected = Model().prepare(files, ROLE)
    items = lanes.prepare(Model(), files, ROLE)
    assert len({item.features.sum().item() for item in expected}) > 20
    for one, two in zip(items, expected, strict=True):
        assert torch.equal(one.features, two.features)


@pytest.mark.parametrize(
    ("files", "error"),
    [
        ([SMALL[0], b"none", LARGE[0][:-40], *SMALL[:3], b""], InvalidImage),
        ([SMALL[0], picture(6_000, 6_000), b"none"], ImageTooLarge),
    ],
)
def test_errors_are_those_of_one_thread(lanes, files, error):
    with pytest.raises(error) as expected:
        Model().prepare(files, ROLE)
    with pytest.raises(error) as caught:
        lanes.prepare(Model(), files, ROLE)
    assert (caught.value.detail, caught.value.rows, caught.value.field, caught.value.limit) == (
        expected.value.detail,
        expected.value.rows,
        expected.value.field,
        expected.value.limit,
    )


def test_small_images_do_not_wait_for_large_ones(lanes):
    """Large images of more requests than there are threads wait meanwhile."""
    free = threading.Event()
    held = lanes._large.submit(lambda *_: free.wait(SOON_S), LARGE_LANES, 1)
    with ThreadPoolExecutor(6) as clients:
        large = [clients.submit(lanes.prepare, Model(), LARGE, ROLE) for _ in range(5)]
        small = clients.submit(lanes.prepare, Model(), SMALL, ROLE)
        assert len(small.result(timeout=SOON_S)) == len(SMALL)
        assert not any(waiting.done() for waiting in large)
        free.set()
        assert [len(each.result(timeout=SOON_S)) for each in large] == [len(LARGE)] * 5
    held.result(timeout=SOON_S)
