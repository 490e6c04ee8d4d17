"""Where timm models come from: invalid folders, and the hub."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from app.encoders.models.base import EncoderSpec, ModelSources
from app.encoders.models.model_files import find_model, hash_folder
from app.encoders.models.pool import EncoderPool
from app.encoders.models.torchvision_ops import make_importable
from app.errors import (
    EncoderUnavailable,
)

make_importable()
timm = pytest.importorskip("timm")
Image = pytest.importorskip("PIL.Image")
from safetensors.torch import load_file  # noqa: E402
from safetensors.torch import save as save_safetensors  # noqa: E402

from tests.encoders.models.timm_models import (  # noqa: E402
    IMAGES,
    config_of,
    encode,
    load,
)

# Unavailable models


def load_error(folder, name, **shelf) -> EncoderUnavailable:
    with pytest.raises(EncoderUnavailable) as caught:
        EncoderPool(ModelSources(folder=folder, **shelf)).get(EncoderSpec("timm", name))
    assert str(folder) not in caught.value.detail
    assert caught.value.field == "model"
    return caught.value


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
        error = load_error(shelf, each)
        assert "ANCHORAGE_MODELS_DIR" in error.detail
        assert "ANCHORAGE_HUB_MODELS" in error.detail


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
    load_error(mine(weights=trap, name=name), "mine")
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
    load_error(mine(json.dumps(config)), "mine")


@pytest.mark.parametrize("content", ["[]", "garbage", "[" * 100_000])
def test_an_invalid_config_is_rejected(mine, content):
    load_error(mine(content), "mine")


def test_missing_weights_are_rejected(folder, mine):
    weights = load_file(folder / "vit" / "model.safetensors")
    del weights["blocks.0.attn.qkv.weight"]
    load_error(mine(weights=save_safetensors(weights)), "mine")


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


def test_a_folder_has_priority_over_the_hub(cached, folder):
    (cached / "models" / "timm").mkdir(parents=True)
    (cached / "models" / "timm" / "tiny").symlink_to(folder / "resnet")
    shelf = ModelSources(folder=cached, hub=("timm/*",))
    assert find_model(EncoderSpec("timm", "timm/tiny"), shelf)[1] == COMMIT
    own = cached / "timm" / "tiny"
    own.mkdir(parents=True)
    (own / "config.json").write_text("{}")
    assert find_model(EncoderSpec("timm", "timm/tiny"), shelf) == (
        own.resolve(),
        hash_folder(own),
    )


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
