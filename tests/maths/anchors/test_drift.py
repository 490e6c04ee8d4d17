"""A change of an encoder's vectors is recognised, from rounding to another encoder."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.demo.pack import load_pack
from app.maths.anchors import drift
from app.maths.anchors.drift import HALF_DEVIATION, SAME_DEVIATION, compare_embeddings
from app.maths.quality.metrics import unit
from tests.maths.bootstrap.clouds import normal, rotation

PACK = load_pack()
#: the pack is of float16: a little noise makes its numbers float32 ones
OLD = PACK.vectors["minilm6-384"][:300] * (
    1 + 1e-3 * torch.randn(300, 384, generator=torch.Generator().manual_seed(0))
)
LENGTHS = PACK.vectors["minilm3-512"][:300]


def test_the_same_vectors_are_unchanged_to_the_bit():
    found = compare_embeddings(OLD, OLD.clone())
    assert found.verdict == "unchanged"
    assert int(found.changed.sum()) == 0
    assert float(found.deviations.max()) == 0.0


@pytest.mark.parametrize(
    ("change", "most"),
    [
        (lambda x: x * (1 + 1e-6 * normal(1, 300, 384)), SAME_DEVIATION),
        (lambda x: x.half().float(), HALF_DEVIATION),
        (lambda x: x.bfloat16().float(), HALF_DEVIATION),
    ],
)
def test_rounding_is_no_change(change, most):
    found = compare_embeddings(OLD, change(OLD))
    assert found.verdict == "unchanged"
    assert float(found.deviations.max()) <= most


def test_a_move_by_one_percent_is_found_unless_noise_explains_it():
    """Noise, and a rotation by that angle in every plane of two coordinates."""
    old, share = OLD[:42, :64], 0.01
    noisy = old + share * old.norm(dim=1, keepdim=True) * unit(normal(5, 42, 64))
    turned = old * math.cos(share)
    turned[:, ::2] -= old[:, 1::2] * math.sin(share)
    turned[:, 1::2] += old[:, ::2] * math.sin(share)
    for new in (noisy, turned):
        assert float(drift.deviations(old, new).median()) == pytest.approx(share, rel=0.01)
        assert compare_embeddings(old, new).verdict == "changed"
        assert compare_embeddings(old, new, noise=share / 4).verdict == "changed"
        assert compare_embeddings(old, new, noise=share / 2).verdict == "unchanged"


@given(scale=st.floats(1e-6, 1e6).filter(lambda scale: abs(scale - 1) > 3 * HALF_DEVIATION))
def test_another_scale_is_rescaled(scale):
    found = compare_embeddings(OLD[:40], OLD[:40] * scale)
    assert found.verdict == "rescaled"
    assert int(found.changed.sum()) == 0


def test_vectors_that_are_normalised_now_are_rescaled_in_half_precision_too():
    assert compare_embeddings(LENGTHS, unit(LENGTHS).float()).verdict == "rescaled"
    assert compare_embeddings(OLD, (3 * OLD).half().float()).verdict == "rescaled"


def test_a_rotation_another_order_and_another_encoder_change_every_vector():
    other = PACK.vectors["static-256"][:300]
    for old, new in (
        (OLD, OLD @ rotation(2, 384)),
        (OLD, OLD.flip(0)),
        (OLD[:, :256], other),
        (OLD[:1], OLD[:1] @ rotation(8, 384)),
    ):
        found = compare_embeddings(old, new)
        assert (found.verdict, bool(found.changed.all())) == ("changed", True)


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_a_few_replaced_rows_are_named_whether_or_not_the_rest_is_scaled(scale):
    new = OLD.clone() * scale
    rows = [3, 77, 210]
    new[rows] = scale * OLD[[4, 78, 211]]
    found = compare_embeddings(OLD, new)
    assert found.verdict == "changed"
    assert found.changed.nonzero().flatten().tolist() == rows


def test_a_small_change_of_few_rows_is_not_taken_for_the_rounding_of_all():
    new = OLD.clone()
    new[5] *= 1.01
    assert compare_embeddings(OLD, new).changed.nonzero().flatten().tolist() == [5]
    assert compare_embeddings(OLD, OLD.bfloat16().float()).verdict == "unchanged"


@pytest.mark.parametrize(
    "new",
    [torch.zeros(20, 384), torch.ones(20, 384), 1e-30 * torch.eye(20, 384)],
)
def test_degenerate_vectors_are_a_change_and_no_error(new):
    found = compare_embeddings(OLD[:20], new)
    assert found.verdict == "changed"
    assert compare_embeddings(new, OLD[:20]).verdict == "changed"
    assert compare_embeddings(new, new).verdict == "unchanged"
