"""timm models: vectors, options, identity, and errors of inputs."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize

from app.encoders.models import images
from app.encoders.models.torchvision_ops import make_importable
from app.errors import ImageTooLarge, InvalidInput
from app.types import Modality

make_importable()
timm = pytest.importorskip("timm")
Image = pytest.importorskip("PIL.Image")
from timm.data import create_transform, resolve_model_data_config  # noqa: E402

from tests.encoders.models.timm_models import (  # noqa: E402
    IMAGES,
    PICTURES,
    ROLE,
    TINY,
    encode,
    load,
    png,
)

# Vectors


@pytest.mark.parametrize("name", TINY)
def test_vectors_equal_the_classifiers_inputs(folder, name):
    """Uses timm's own loader, transform and features before the classifier."""
    _, _, _, pooling = TINY[name]
    own = timm.create_model(f"local-dir:{folder / name}", pretrained=True).eval()
    transform = create_transform(**resolve_model_data_config(own), is_training=False)
    with torch.no_grad():
        batch = torch.stack([transform(picture.convert("RGB")) for picture in PICTURES])
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


def test_an_item_is_as_long_as_its_patches(folder):
    item = load(folder, "no-classifier").prepare(IMAGES[:1], ROLE)[0]
    assert (item.length, item.tokens, item.truncated) == (12, 0, False)


# Options and identity


def test_options_change_the_vectors_and_the_identity(folder):
    plain = load(folder, "vit")
    vectors = encode(plain, IMAGES)
    short = load(folder, "vit", normalise=True, dim=10)
    torch.testing.assert_close(encode(short, IMAGES), normalize(vectors[:, :10]))
    torch.testing.assert_close(encode(load(folder, "vit", dim=10), IMAGES), vectors[:, :10])
    half, draft = load(folder, "vit", dtype="bfloat16"), load(folder, "vit", draft=True)
    torch.testing.assert_close(encode(half, IMAGES), vectors, atol=0.1, rtol=0.1)
    assert not torch.equal(encode(half, IMAGES), vectors)
    assert half.nbytes * 2 == plain.nbytes
    assert (short.dim, short.identity.dim, short.identity.normalise) == (10, 10, True)
    assert half.identity.dtype == "bfloat16"
    assert len({encoder.identity.fingerprint for encoder in (plain, short, half, draft)}) == 4
    assert (plain.modality, plain.endpoint, plain.identity.prompts, plain.identity.model) == (
        Modality.image,
        None,
        {},
        "vit",
    )
    assert load(folder, "vit").identity == plain.identity


# Bad inputs


def test_texts_are_rejected_by_row(folder):
    with pytest.raises(InvalidInput) as caught:
        load(folder, "vit").prepare([IMAGES[0], "a text", b"", "another"], ROLE)
    assert (caught.value.rows, caught.value.field) == ([1, 3], "inputs")


def test_the_file_and_the_resized_image_have_limits(folder, monkeypatch):
    encoder = load(folder, "vit")
    monkeypatch.setattr(images, "MAX_IMAGE_PIXELS", 50 * 50)
    assert len(encoder.prepare(IMAGES[:2], ROLE)) == 2
    with pytest.raises(ImageTooLarge) as caught:
        encoder.prepare([*IMAGES], ROLE)
    assert (caught.value.rows, caught.value.limit) == ([2], 2500)
    # 1 x 600 has fewer than 2,500 pixels; resized for the model it would have 35 x 21,000.
    with pytest.raises(ImageTooLarge, match="too long for its width"):
        encoder.prepare([png(Image.new("L", (600, 1)))], ROLE)
    with pytest.raises(ImageTooLarge, match="too long for its width"):
        encoder.prepare([png(Image.new("1", (2_500, 1)))], ROLE)
