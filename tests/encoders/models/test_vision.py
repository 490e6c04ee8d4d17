"""timm models: vectors, options, images that are prepared for them, and where models come from."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from safetensors.torch import save as save_safetensors
from torch.nn.functional import normalize

from app.encoders.models import images
from app.encoders.models.base import EncoderSpec, ModelSources
from app.encoders.models.images import ImagePreparer
from app.encoders.models.pool import EncoderPool
from app.errors import EncoderUnavailable, ImageTooLarge, InvalidImage, InvalidInput
from app.lanes import Lanes
from app.types import Modality
from tests.encoders.models.timm_models import (
    IMAGES,
    PICTURES,
    ROLE,
    TINY,
    Image,
    config_of,
    encode,
    load,
    png,
    save_models,
    timm,
)


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """A models' folder with small timm models."""
    root = tmp_path_factory.mktemp("models")
    save_models(root)
    return root


# Vectors


@pytest.mark.parametrize("name", TINY)
def test_vectors_equal_the_classifiers_inputs(folder, name):
    """Uses timm's own loader, transform and features before the classifier."""
    _, _, _, pooling = TINY[name]
    own = timm.create_model(f"local-dir:{folder / name}", pretrained=True).eval()
    transform = timm.data.create_transform(
        **timm.data.resolve_model_data_config(own), is_training=False
    )
    with torch.no_grad():
        batch = torch.stack([transform(picture.convert("RGB")) for picture in PICTURES])
        expected = own.forward_head(own.forward_features(batch), pre_logits=True)
    encoder = load(folder, name)
    vectors = encode(encoder, IMAGES)
    assert encoder.dim == expected.shape[1]
    torch.testing.assert_close(vectors, expected, atol=1e-5, rtol=1e-5)
    assert (vectors[0] - vectors[1]).abs().max() > 1e-3
    assert encoder.identity.pooling == pooling
    assert encoder.nbytes <= sum(tensor.nbytes for tensor in own.state_dict().values())


# Options and identity


def test_options_change_the_vectors_and_the_identity(folder):
    plain = load(folder, "vit")
    vectors = encode(plain, IMAGES)
    short = load(folder, "vit", normalise=True, dim=10)
    torch.testing.assert_close(encode(short, IMAGES), normalize(vectors[:, :10]))
    torch.testing.assert_close(encode(load(folder, "vit", dim=10), IMAGES), vectors[:, :10])
    half = load(folder, "vit", dtype="bfloat16")
    torch.testing.assert_close(encode(half, IMAGES), vectors, atol=0.1, rtol=0.1)
    assert not torch.equal(encode(half, IMAGES), vectors)
    assert half.nbytes * 2 == plain.nbytes
    assert (short.dim, short.identity.dim, short.identity.normalise) == (10, 10, True)
    assert half.identity.dtype == "bfloat16"
    assert len({encoder.identity.fingerprint for encoder in (plain, short, half)}) == 3
    assert (plain.modality, plain.identity.model) == (Modality.image, "vit")
    assert load(folder, "vit").identity == plain.identity


# Bad inputs


def test_texts_are_rejected_by_row(folder):
    with pytest.raises(InvalidInput) as caught:
        load(folder, "vit").prepare([IMAGES[0], "a text", b"", "another"], ROLE)
    assert (caught.value.rows, caught.value.field) == ([1, 3], "inputs")


def test_the_resized_image_has_a_limit(folder, monkeypatch):
    encoder = load(folder, "vit")
    monkeypatch.setattr(images, "MAX_IMAGE_PIXELS", 50 * 50)
    # 1 x 600 has fewer than 2,500 pixels; resized for the model it would have 35 x 21,000.
    for width in (600, 2_500):
        with pytest.raises(ImageTooLarge, match="too long for its width"):
            encoder.prepare([png(Image.new("1", (width, 1)))], ROLE)


# Preparing

SOON_S = 20
STATISTICS = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
CONFIG = {"input_size": (3, 20, 20), "crop_pct": 1.0, "crop_mode": "squash", **STATISTICS}


def picture(width: int, height: int, shade: int = 0) -> bytes:
    return png(Image.new("RGB", (width, height), (shade, 90, 200)))


def test_other_models_than_of_colours_are_refused():
    with pytest.raises(EncoderUnavailable, match="1 channels"):
        ImagePreparer({**CONFIG, "input_size": (1, 32, 32)})


def test_items_have_the_order_of_the_inputs_and_small_images_do_not_wait_for_large_ones(
    monkeypatch,
):
    lanes, free = Lanes(1), threading.Event()
    lanes.submit(lambda *_: free.wait(SOON_S), rows=1, step=1)
    monkeypatch.setattr(images, "SMALL_IMAGE_PIXELS", 5_000)
    monkeypatch.setattr(images, "_large_lanes", lambda: lanes)
    preparer = ImagePreparer(CONFIG)
    small = [picture(20, 20 + place, place) for place in range(30)]
    # The first has few pixels, and many once it is resized.
    large = [png(Image.new("L", (900, 2))), picture(100, 60)]
    with ThreadPoolExecutor(1) as client:
        waiting = client.submit(preparer.prepare, [*large, small[9]])
        items = preparer.prepare(small)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.3)
        free.set()
        assert torch.equal(waiting.result(timeout=SOON_S)[2].features, items[9].features)
    alone = [preparer.prepare([file])[0].features for file in small]
    assert all(torch.equal(one.features, two) for one, two in zip(items, alone, strict=True))


@pytest.mark.parametrize(
    ("files", "error", "rows"),
    [
        ([picture(9, 9), b"none", picture(99, 90)[:-40], b""], InvalidImage, [1, 2, 3]),
        ([picture(9, 9), picture(6_000, 6_000), b"none"], ImageTooLarge, [1]),
    ],
)
def test_an_error_names_all_rows_of_the_first_kind(files, error, rows):
    with pytest.raises(error) as caught:
        ImagePreparer(CONFIG).prepare(files)
    assert (caught.value.rows, caught.value.field) == (rows, "inputs")


# Unavailable models


def refusal(folder, name="mine") -> str:
    with pytest.raises(EncoderUnavailable) as caught:
        load(folder, name)
    assert str(folder) not in caught.value.detail
    assert caught.value.field == "model"
    return caught.value.detail


@pytest.mark.parametrize(
    "name", ["none", "inner/../../out", "", "/", "out", "loop", "\0", "x" * 5000]
)
def test_the_error_for_a_missing_model_says_what_to_do(folder, tmp_path, name):
    shelf = tmp_path / "shelf"
    (shelf / "inner").mkdir(parents=True)
    (tmp_path / "out").symlink_to(folder / "vit")
    (shelf / "out").symlink_to(folder / "vit")
    (shelf / "loop").symlink_to(shelf / "loop")
    for each in (name, str(tmp_path / "out")):
        detail = refusal(shelf, each)
        assert "ANCHORAGE_MODELS_DIR" in detail
        assert "ANCHORAGE_HUB_MODELS" in detail


@pytest.fixture
def mine(folder, tmp_path):
    """Writes the model `mine` into the models' folder; its files default to a tiny ViT's."""

    def write(config=None, weights=None, name="model.safetensors"):
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "config.json").write_text(config or json.dumps(config_of(folder)))
        weights = weights or (folder / "vit" / "model.safetensors").read_bytes()
        (tmp_path / "mine" / name).write_bytes(weights)
        return tmp_path

    return write


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pth", "model.safetensors"])
def test_pickled_weights_are_never_opened(mine, tmp_path, name):
    trap = f"cposix\nsystem\n(Vtouch {tmp_path / 'sprung'}\ntR.".encode()
    refusal(mine(weights=trap, name=name))
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"architecture": "no_such_model"},
        {"architecture": "hf-hub:timm/resnet18.a1_in1k"},
        {"model_args": [1]},
        {"model_args": {"depth": 3}},
        {"model_args": {"checkpoint_path": "x"}},
        {"model_args": {"features_only": True}},
        {"model_args": {"pretrained_strict": False}},
    ],
    ids=str,
)
def test_a_config_that_does_not_fit_or_names_other_files_is_refused(folder, mine, change):
    config = config_of(folder)
    for key, value in change.items():
        both = isinstance(value, dict)
        config[key] = {**config[key], **value} if both else value
    refusal(mine(json.dumps(config)))


@pytest.mark.parametrize("content", ["[]", "[" * 100_000])
def test_an_invalid_config_is_rejected(mine, content):
    refusal(mine(content))


def test_missing_weights_are_rejected(folder, mine):
    weights = load_file(folder / "vit" / "model.safetensors")
    del weights["blocks.0.attn.qkv.weight"]
    refusal(mine(weights=save_safetensors(weights)))


# The hub

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cached(folder, tmp_path, monkeypatch) -> Path:
    """The hub's cache with one downloaded model, and no network."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    repository = tmp_path / "hub" / "models--timm--tiny"
    (repository / "snapshots").mkdir(parents=True)
    (repository / "snapshots" / COMMIT).symlink_to(folder / "vit")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    return tmp_path


def test_a_downloaded_model_needs_no_network(cached, folder):
    for revision in (None, "main", COMMIT):
        pool = EncoderPool(ModelSources(hub=("other/*", "timm/*")))
        encoder = pool.get(EncoderSpec("timm", "timm/tiny", revision))
        assert encoder.identity.revision == COMMIT
    assert torch.equal(encode(encoder, IMAGES), encode(load(folder, "vit"), IMAGES))


@pytest.mark.parametrize(
    ("model", "revision", "hub"),
    [
        ("timm/tiny", None, ()),
        ("timm/tiny", None, ("Timm/*", "other/*", "timm")),
        ("timm/tiny", "v2", ("*",)),
        ("timm/tiny", "../../models--timm--tiny/refs/main", ("*",)),
        ("timm/../tiny", None, ("*",)),
    ],
)
def test_a_model_neither_allowed_nor_downloaded_is_rejected(cached, model, revision, hub):
    with pytest.raises(EncoderUnavailable):
        EncoderPool(ModelSources(hub=hub)).get(EncoderSpec("timm", model, revision))
