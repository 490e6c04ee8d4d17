"""timm models: small ones with random weights, written by timm itself, and their errors."""

from __future__ import annotations

import json
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from app.encoders import vision
from app.encoders.base import EncoderSpec, ModelSources
from app.encoders.images import ImageLimits
from app.encoders.model_files import find_model, hash_files
from app.encoders.torchvision_ops import make_importable
from app.errors import (
    EncoderFailed,
    EncoderUnavailable,
    ImageTooLarge,
    InvalidImage,
    InvalidInput,
    InvalidOption,
)
from app.types import InputRole, Modality

make_importable()
timm = pytest.importorskip("timm")
Image = pytest.importorskip("PIL.Image")
from safetensors.torch import load_file, save_file  # noqa: E402
from safetensors.torch import save as save_safetensors  # noqa: E402
from timm.data import create_transform, resolve_model_data_config  # noqa: E402

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
DATA = {"input_size": (1, 28, 28), "mean": (0.3,), "std": (0.4,), "crop_pct": 1.0}
SQUASHED = {"input_size": (3, 64, 48), "crop_mode": "squash", "interpolation": "bilinear"}
VIT = {"img_size": 32, "embed_dim": 24, "num_heads": 2}
#: name -> (timm's name, its arguments, its preprocessing, how it pools)
TINY = {
    "resnet": ("resnet10t", {**SMALL, "num_classes": 5}, {"input_size": (3, 40, 40)}, "avg"),
    "grey": ("resnet10t", {**SMALL, "in_chans": 1}, DATA, "avg"),
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    for name, (architecture, arguments, data, _) in TINY.items():
        save(timm.create_model(architecture, **arguments), root / name, data)
    model = timm.create_model("resnet10t", num_classes=0, in_chans=1, **SMALL)
    save_file(model.state_dict(), root / "pair.safetensors")
    (root / "pair.json").write_text(json.dumps(PAIR))
    return root


PAIR = {
    "timm_model": "resnet10t",
    "create_model_kwargs": {"in_chans": 1, **SMALL},
    "preprocessing": {
        "channels": 1,
        "pixels": "uint8 / 255",
        "source_size": 28,
        "zero_pad_to": 32,
        "mean": 0.25,
        "std": 0.5,
    },
}


def save(model, folder, data=None) -> None:
    timm.models.save_for_hf(model, folder, safe_serialization=True, data_config=data)


def load(folder, name, device="cpu", **options):
    return vision.load(
        EncoderSpec("timm", name, options=options), ModelSources(folder=folder), device
    )


@pytest.fixture
def mine(folder, tmp_path):
    """Writes the model `mine` into the models' folder; its files default to a tiny ViT's."""

    def write(config=None, weights=None, *, source="vit", name="model.safetensors"):
        (tmp_path / "mine").mkdir()
        config = (folder / source / "config.json").read_text() if config is None else config
        (tmp_path / "mine" / "config.json").write_text(
            config if isinstance(config, str) else json.dumps(config)
        )
        weights = (
            (folder / source / "model.safetensors").read_bytes() if weights is None else weights
        )
        (tmp_path / "mine" / name).write_bytes(weights)
        return tmp_path

    return write


def config_of(folder, name="vit"):
    return json.loads((folder / name / "config.json").read_text())


def encode(encoder, images) -> torch.Tensor:
    return encoder.run(encoder.prepare(images, ROLE))


# Vectors


@pytest.mark.parametrize("name", TINY)
def test_vectors_equal_the_classifiers_inputs(folder, name):
    """Uses timm's own loader, transform and features before the classifier."""
    _, _, _, pooling = TINY[name]
    own = timm.create_model(f"local-dir:{folder / name}", pretrained=True).eval()
    transform = create_transform(**resolve_model_data_config(own), is_training=False)
    mode = "L" if name == "grey" else "RGB"
    with torch.no_grad():
        batch = torch.stack([transform(picture.convert(mode)) for picture in PICTURES])
        expected = own.forward_head(own.forward_features(batch), pre_logits=True)
    encoder = load(folder, name)
    vectors = encode(encoder, IMAGES)
    assert (vectors.dtype, vectors.device.type, vectors.shape) == (
        torch.float32,
        "cpu",
        (3, encoder.dim),
    )
    torch.testing.assert_close(vectors, expected, atol=1e-5, rtol=1e-5)
    assert (vectors[0] - vectors[1]).abs().max() > 1e-3
    assert encoder.identity.pooling == pooling
    assert encoder.nbytes <= sum(tensor.nbytes for tensor in own.state_dict().values())


@pytest.mark.parametrize("name", ["resnet", "vit", "pair"])
def test_an_image_has_the_same_vector_alone_and_in_a_batch(folder, name):
    encoder = load(folder, name)
    alone = torch.cat([encode(encoder, [image]) for image in IMAGES])
    torch.testing.assert_close(alone, encode(encoder, IMAGES), atol=1e-5, rtol=1e-5)
    assert encode(encoder, []).shape == (0, encoder.dim)


def test_a_pair_uses_its_own_preprocessing(folder):
    model = timm.create_model("resnet10t", num_classes=0, **PAIR["create_model_kwargs"]).eval()
    model.load_state_dict(load_file(folder / "pair.safetensors"))
    grey = RNG.integers(0, 256, (28, 28), dtype=np.uint8)
    with torch.no_grad():
        padded = torch.nn.functional.pad(torch.from_numpy(grey.copy()) / 255, (2, 2, 2, 2))
        expected = model(((padded - 0.25) / 0.5)[None, None])
    encoder = load(folder, "pair")
    torch.testing.assert_close(
        encode(encoder, [png(Image.fromarray(grey))]), expected, atol=1e-5, rtol=1e-5
    )
    assert encoder.prepare(IMAGES, ROLE)[2].features.shape == (1, 32, 32)


def test_one_channel_uses_the_mean_of_three_channels_statistics(folder, mine):
    config = config_of(folder, "grey")
    config["pretrained_cfg"].update(mean=[0.2, 0.3, 0.4], std=[0.3, 0.4, 0.5])
    vectors = encode(load(mine(config, source="grey"), "mine"), IMAGES)
    torch.testing.assert_close(vectors, encode(load(folder, "grey"), IMAGES), atol=1e-5, rtol=1e-5)


def test_autograd_accepts_the_vectors(folder):
    vectors = encode(load(folder, "vit"), IMAGES)
    weight = torch.ones(vectors.shape[1], requires_grad=True)
    (vectors @ weight).sum().backward()
    assert torch.equal(weight.grad, vectors.sum(0))


def test_an_item_has_its_cost(folder):
    item = load(folder, "no-classifier").prepare(IMAGES[:1], ROLE)[0]
    assert (item.length, item.cost, item.tokens, item.truncated) == (64, 12, 0, False)
    assert load(folder, "grey").prepare(IMAGES[:1], ROLE)[0].cost == 3


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
    assert (plain.modality, plain.remote, plain.identity.prompts, plain.identity.model) == (
        Modality.image,
        False,
        {},
        "vit",
    )
    assert load(folder, "vit").identity == plain.identity


def test_more_dimensions_than_the_model_has_are_refused(folder):
    with pytest.raises(InvalidOption) as caught:
        load(folder, "vit", dim=25)
    assert caught.value.field == "options.dim"


def test_the_revision_is_the_files_digest(folder, mine):
    root = mine()
    (root / "mine" / "README.md").write_text("for people")
    revision = load(root, "mine").identity.revision
    assert revision == load(folder, "vit").identity.revision
    pinned = EncoderSpec("timm", "mine", revision)
    assert vision.load(pinned, ModelSources(folder=root), "cpu").identity.revision == revision
    weights = load_file(root / "mine" / "model.safetensors")
    save_file(
        {name: tensor + 1e-3 for name, tensor in weights.items()},
        root / "mine" / "model.safetensors",
    )
    assert load(root, "mine").identity.revision != revision
    with pytest.raises(EncoderUnavailable, match="revision") as caught:
        vision.load(pinned, ModelSources(folder=root), "cpu")
    assert caught.value.field == "revision"


# Bad inputs


def test_texts_are_rejected_by_row(folder):
    with pytest.raises(InvalidInput) as caught:
        load(folder, "vit").prepare([IMAGES[0], "a text", b"", "another"], ROLE)
    assert (caught.value.rows, caught.value.field) == ([1, 3], "inputs")


def test_all_wrong_images_are_named(folder):
    encoder = load(folder, "vit")
    with pytest.raises(InvalidImage) as caught:
        encoder.prepare([IMAGES[0], b"no image", *IMAGES[:1] * 2, IMAGES[1][:-100]], ROLE)
    assert (caught.value.rows, caught.value.field) == ([1, 4], "inputs")
    with pytest.raises(InvalidImage) as caught:
        encoder.prepare([b"no image"] * 50, ROLE)
    assert (len(caught.value.rows), caught.value.row_count) == (20, 50)


def test_the_file_and_the_resized_image_have_limits(folder):
    limits = ImageLimits(pixels=50 * 50)
    encoder = vision.load(
        EncoderSpec("timm", "vit"), ModelSources(folder=folder), "cpu", limits=limits
    )
    assert len(encoder.prepare(IMAGES[:2], ROLE)) == 2
    with pytest.raises(ImageTooLarge) as caught:
        encoder.prepare([*IMAGES], ROLE)
    assert (caught.value.rows, caught.value.limit) == ([2], 2500)
    # 1 x 600 has fewer than 2,500 pixels; resized for the model it would have 35 x 21,000.
    with pytest.raises(ImageTooLarge, match="too long for its width"):
        encoder.prepare([png(Image.new("L", (600, 1)))], ROLE)
    with pytest.raises(ImageTooLarge, match="too long for its width"):
        load(folder, "vit").prepare([png(Image.new("1", (10_000_000, 1)))], ROLE)  # gigabytes


def test_non_finite_vectors_are_an_error(folder):
    encoder = load(folder, "vit")
    items = encoder.prepare(IMAGES[:1], ROLE)
    items[0].features[0, 0, 0] = torch.inf
    with pytest.raises(EncoderFailed):
        encoder.run(items)


# Unavailable models


def refused(folder, name, **shelf) -> EncoderUnavailable:
    with pytest.raises(EncoderUnavailable) as caught:
        vision.load(EncoderSpec("timm", name), ModelSources(folder=folder, **shelf), "cpu")
    assert str(folder) not in caught.value.detail
    return caught.value


@pytest.mark.parametrize(
    "name",
    [
        "none",
        "a/b",
        "../out",
        "inner/../../out",
        "",
        ".",
        "/",
        "out",
        "lost",
        "loop",
        "\0",
        "x" * 5000,
    ],
)
def test_the_error_for_a_missing_model_says_what_to_do(folder, tmp_path, name):
    shelf = tmp_path / "shelf"
    (shelf / "inner").mkdir(parents=True)
    save(timm.create_model("resnet10t", channels=[8, 8, 8, 8], stem_width=8), tmp_path / "out")
    (shelf / "out").symlink_to(tmp_path / "out")
    (shelf / "lost").symlink_to(shelf / "nowhere")
    (shelf / "loop").symlink_to(shelf / "loop")
    error = refused(shelf, name)
    assert error.field == "model"
    assert "ANCHORAGE_MODELS_DIR" in error.detail
    assert "ANCHORAGE_HUB_MODELS" in error.detail
    with pytest.raises(EncoderUnavailable):
        vision.load(EncoderSpec("timm", str(tmp_path / "out")), ModelSources(folder=shelf), "cpu")


def test_a_link_out_of_the_folder_is_rejected_inside_a_model(folder, mine):
    root = mine()
    weights = root / "mine" / "model.safetensors"
    weights.rename(root / "blob")
    weights.symlink_to(folder / "vit" / "model.safetensors")
    assert "model.safetensors" in refused(root, "mine").detail
    weights.unlink()
    weights.symlink_to("../blob")
    assert load(root, "mine").identity.revision == load(folder, "vit").identity.revision


def trap(where: Path) -> bytes:
    """A pickle that writes a file when it is loaded."""
    return f"cposix\nsystem\n(Vtouch {where}\ntR.".encode()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pth", "model.safetensors"])
def test_pickled_weights_are_never_opened(mine, tmp_path, name):
    assert refused(mine(weights=trap(tmp_path / "sprung"), name=name), "mine").field == "model"
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
        (["architecture"], None),
        (["model_args"], [1]),
        (["model_args", "no_such_argument"], 1),
        (["model_args", "depth"], 3),
        (["model_args", "num_classes"], 9),
        (["model_args", "global_pool"], ""),
        (["num_classes"], -1),
        (["pretrained_cfg", "no_such_setting"], 1),
        (["pretrained_cfg"], "x"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(folder, mine, path, value):
    assert refused(mine(changed(config_of(folder), path, value)), "mine").field == "model"


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
    assert f"may not contain {argument}" in refused(mine(config), "mine").detail


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["timm_model"], "no_such_model"),
        (["create_model_kwargs", "pretrained"], True),
        (["create_model_kwargs", "stem_width"], 16),
        (["create_model_kwargs", "in_chans"], 3),
        (["preprocessing", "channels"], 2),
        (["preprocessing", "pixels"], "float"),
        (["preprocessing", "zero_pad_to"], 31),
        (["preprocessing", "zero_pad_to"], 20),
        (["preprocessing", "mean"], "x"),
        (["preprocessing"], {}),
    ],
)
def test_a_pair_that_does_not_fit_is_refused(folder, tmp_path, path, value):
    (tmp_path / "mine.json").write_text(
        json.dumps(changed(json.loads(json.dumps(PAIR)), path, value))
    )
    (tmp_path / "mine.safetensors").write_bytes((folder / "pair.safetensors").read_bytes())
    assert refused(tmp_path, "mine").field == "model"


@pytest.mark.parametrize("content", ["", "[]", "{}", "garbage", "[" * 100_000])
def test_an_invalid_config_is_rejected(mine, content):
    assert refused(mine(content, b""), "mine").field == "model"


def test_missing_weights_are_rejected(folder, mine):
    weights = load_file(folder / "vit" / "model.safetensors")
    del weights["blocks.0.attn.qkv.weight"]
    assert refused(mine(weights=save_safetensors(weights)), "mine").field == "model"


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
        encoder = vision.load(
            EncoderSpec("timm", "timm/tiny", revision),
            ModelSources(hub=("other/*", "timm/*")),
            "cpu",
        )
        assert encoder.identity.revision == COMMIT
    assert torch.equal(encode(encoder, IMAGES), encode(load(folder, "vit"), IMAGES))


def test_a_folder_has_priority_over_the_hub(cached, folder):
    (cached / "models" / "timm").mkdir(parents=True)
    (cached / "models" / "timm" / "tiny").symlink_to(folder / "grey")
    shelf = ModelSources(folder=cached, hub=("timm/*",))
    assert find_model(EncoderSpec("timm", "timm/tiny"), shelf)[1] == COMMIT
    own = cached / "timm" / "tiny"
    own.mkdir(parents=True)
    (own / "config.json").write_text("{}")
    assert find_model(EncoderSpec("timm", "timm/tiny"), shelf) == (
        own.resolve(),
        hash_files([own / "config.json"], own),
    )


@pytest.mark.parametrize(
    ("model", "revision", "hub"),
    [
        ("timm/tiny", None, ()),
        ("timm/tiny", None, ("Timm/*", "other/*", "timm")),
        ("timm/other", None, ("*",)),
        ("timm/tiny", "v2", ("*",)),
        ("timm/tiny", "../../models--timm--tiny/refs/main", ("*",)),
        ("timm/../tiny", None, ("*",)),
        ("timm/tiny/more", None, ("*",)),
        ("-/-", None, ("*",)),
    ],
)
def test_a_model_neither_allowed_nor_downloaded_is_rejected(cached, model, revision, hub):
    with pytest.raises(EncoderUnavailable):
        vision.load(EncoderSpec("timm", model, revision), ModelSources(hub=hub), "cpu")


# Torchvision


def test_torchvision_can_be_imported_with_any_torch():
    """Imports in a separate process, from many threads at once."""
    script = """
import sys, threading
from app.encoders.torchvision_ops import make_importable
assert not any(name.startswith("torchvision") for name in sys.modules)
threads = [threading.Thread(target=make_importable) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
make_importable()
import torchvision.transforms, timm
assert timm.is_model("resnet10t")
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
