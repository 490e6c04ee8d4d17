"""A change of an encoder's vectors is recognised, from rounding to another encoder."""

from __future__ import annotations

import math

import pytest
import torch

from app.demo.pack import load_pack
from app.maths.anchors import drift
from app.maths.anchors.drift import HALF_DEVIATION, SAME_DEVIATION, compare_embeddings
from app.maths.quality.metrics import unit
from tests.maths.bootstrap.clouds import normal
from tests.maths.clouds import rotation

PACK = load_pack()
#: the pack is of float16: a little noise makes its numbers float32 ones
OLD = PACK.vectors["minilm6-384"][:300] * (
    1 + 1e-3 * torch.randn(300, 384, generator=torch.Generator().manual_seed(0))
)


@pytest.mark.parametrize(
    ("change", "verdict", "most"),
    [
        (lambda x: x * (1 + 1e-6 * normal(1, 300, 384)), "unchanged", SAME_DEVIATION),
        (lambda x: x.half().float(), "unchanged", HALF_DEVIATION),
        (lambda x: x.bfloat16().float(), "unchanged", HALF_DEVIATION),
        (lambda x: x * 1e-6, "rescaled", 1.0),
        (lambda x: x * 1.02, "rescaled", 0.021),
        (lambda x: x * torch.linspace(0.5, 3, 300)[:, None], "rescaled", 2.1),
        (lambda x: x @ rotation(2, 384).float(), "changed", 3.0),
        (lambda x: PACK.vectors["minilm3-512"][:300, :384], "changed", 99.0),
    ],
)
def test_rounding_a_scale_and_another_encoder_are_told_apart(change, verdict, most):
    found = compare_embeddings(OLD, change(OLD))
    assert found.verdict == verdict
    assert float(found.deviations.max()) <= most
    assert float(found.changed.double().mean()) == (verdict == "changed")


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


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_a_few_replaced_rows_are_named_whether_or_not_the_rest_is_scaled(scale):
    new = OLD.clone() * scale
    new[[3, 77, 210]] = scale * OLD[[4, 78, 211]]
    found = compare_embeddings(OLD, new)
    assert found.verdict == "changed"
    assert found.changed.nonzero().flatten().tolist() == [3, 77, 210]


@pytest.mark.parametrize("new", [torch.zeros(20, 384), 1e-30 * torch.eye(20, 384)])
def test_degenerate_vectors_are_a_change_and_no_error(new):
    found = compare_embeddings(OLD[:20], new)
    assert found.verdict == "changed"
    assert compare_embeddings(new, OLD[:20]).verdict == "changed"
    assert compare_embeddings(new, new).verdict == "unchanged"
