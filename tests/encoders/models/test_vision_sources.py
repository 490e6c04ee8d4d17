"""Where timm models come from: invalid folders, and the hub."""

from __future__ import annotations

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
    save,
)

# Unavailable models


def load_error(folder, name, **shelf) -> EncoderUnavailable:
    with pytest.raises(EncoderUnavailable) as caught:
        EncoderPool(ModelSources(folder=folder, **shelf)).get(EncoderSpec("timm", name))
    assert str(folder) not in caught.value.detail
    return caught.value


@pytest.mark.parametrize(
    "name",
    ["none", "inner/../../out", "", "/", "out", "loop", "\0", "x" * 5000],
)
def test_the_error_for_a_missing_model_says_what_to_do(folder, tmp_path, name):
    shelf = tmp_path / "shelf"
    (shelf / "inner").mkdir(parents=True)
    save(timm.create_model("resnet10t", channels=[8, 8, 8, 8], stem_width=8), tmp_path / "out")
    (shelf / "out").symlink_to(tmp_path / "out")
    (shelf / "lost").symlink_to(shelf / "nowhere")
    (shelf / "loop").symlink_to(shelf / "loop")
    error = load_error(shelf, name)
    assert error.field == "model"
    assert "ANCHORAGE_MODELS_DIR" in error.detail
    assert "ANCHORAGE_HUB_MODELS" in error.detail
    with pytest.raises(EncoderUnavailable):
        EncoderPool(ModelSources(folder=shelf)).get(EncoderSpec("timm", str(tmp_path / "out")))


def trap(where: Path) -> bytes:
    """A pickle that writes a file when it is loaded."""
    return f"cposix\nsystem\n(Vtouch {where}\ntR.".encode()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pth", "model.safetensors"])
def test_pickled_weights_are_never_opened(mine, tmp_path, name):
    assert load_error(mine(weights=trap(tmp_path / "sprung"), name=name), "mine").field == "model"
    assert not (tmp_path / "sprung").exists()


def changed(config, path, value):
    *outer, last = path
    inner = config
    for key in outer:
        inner = inner[key]
    inner[last] = value
    return config


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["architecture"], "no_such_model"),
        (["architecture"], "hf-hub:timm/resnet18.a1_in1k"),
        (["model_args"], [1]),
        (["model_args", "depth"], 3),
    ],
)
def test_a_config_that_does_not_fit_is_refused(folder, mine, path, value):
    assert load_error(mine(changed(config_of(folder), path, value)), "mine").field == "model"


OTHERS = {
    "checkpoint_path": "x",
    "cache_dir": "x",
    "features_only": True,
    "pretrained_strict": False,
    "pretrained": True,
}


@pytest.mark.parametrize("argument", OTHERS)
def test_arguments_that_would_load_other_files_are_rejected(folder, mine, argument):
    config = changed(config_of(folder), ["model_args", argument], OTHERS[argument])
    assert f"may not contain {argument}" in load_error(mine(config), "mine").detail


@pytest.mark.parametrize("content", ["[]", "garbage", "[" * 100_000])
def test_an_invalid_config_is_rejected(mine, content):
    assert load_error(mine(content, b""), "mine").field == "model"


def test_missing_weights_are_rejected(folder, mine):
    weights = load_file(folder / "vit" / "model.safetensors")
    del weights["blocks.0.attn.qkv.weight"]
    assert load_error(mine(weights=save_safetensors(weights)), "mine").field == "model"


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
