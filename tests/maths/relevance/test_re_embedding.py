"""What encoding rows again is worth, on held-out anchors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from app.maths.quality.metrics import unit
from app.maths.relevance.re_embedding import (
    CENTRAL_ANCHORS,
    FEWEST_CHOSEN_FROM,
    at_size,
    centrality,
    re_embedding_curve,
)
from app.maths.translators import methods


def some(n: int, d: int, seed: int) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pair(count: int = 200) -> tuple[Tensor, Tensor]:
    """Two noisy, bent views of the same hidden factors, which form clusters."""
    factors = some(8, 6, 1)[torch.arange(count) % 8] + 0.7 * some(count, 6, 2)
    x = (factors @ some(6, 20, 3) / 2).tanh() + 0.2 * some(count, 20, 4)
    y = (factors @ some(6, 14, 5) / 2).tanh() + 0.2 * some(count, 14, 6)
    return x, y


OPTIONS = methods.resolve("graded", {}, anchors=200)


def test_recall_rises_with_the_share_and_ends_at_one() -> None:
    curve = re_embedding_curve("graded", *pair(), OPTIONS, shares=(0.0, 0.1, 0.3, 0.6, 1.0))
    assert curve is not None
    assert curve.index == 40
    assert curve.neighbours == 10
    for name in ("centrality", "random"):
        recalls = [each.recall[name].value for each in curve.shares]
        assert recalls[0] == pytest.approx(curve.before.value)
        assert recalls == sorted(recalls)
        assert recalls[-1] == 1.0
        for each in curve.shares:
            low, value, high = (getattr(each.recall[name], end) for end in ("low", "value", "high"))
            assert low <= value <= high


def test_centrality_is_the_mean_of_the_nearest_cosines() -> None:
    anchors, vectors = some(50, 5, 1) + 3, some(7, 5, 2) + 3
    mean = anchors.mean(dim=0)
    cosines = unit(vectors - mean) @ unit(anchors - mean).T
    nearest = cosines.sort(dim=1, descending=True).values[:, :CENTRAL_ANCHORS]
    assert torch.allclose(centrality(vectors, anchors), nearest.mean(dim=1))
    assert centrality(vectors[:0], anchors).shape == (0,)
    assert centrality(vectors, anchors[:3]).shape == (7,)


def test_too_few_or_equal_anchors_have_no_curve() -> None:
    x, y = pair(FEWEST_CHOSEN_FROM - 1)
    options = methods.resolve("graded", {}, anchors=len(x))
    assert re_embedding_curve("graded", x, y, options) is None
    same = torch.ones(50, 4)
    assert re_embedding_curve("graded", same, same, options) is None


def test_at_another_size_the_curve_begins_at_the_estimate_and_keeps_its_order() -> None:
    curve = re_embedding_curve("graded", *pair(), OPTIONS)
    assert curve is not None
    moved = at_size(curve, 0.4, 1_000_000)
    assert moved.before.value == pytest.approx(0.4, abs=1e-6)
    assert moved.index == 1_000_000
    for before, after in zip(curve.shares, moved.shares, strict=True):
        for name in before.recall:
            assert 0 <= after.recall[name].low <= after.recall[name].value
            assert after.recall[name].value <= after.recall[name].high <= 1
    gains = [each.recall["random"].value for each in moved.shares]
    assert gains == sorted(gains)
    same = at_size(curve, curve.before.value, round(curve.index))
    assert same.before.value == pytest.approx(curve.before.value, abs=1e-6)


def test_one_row_is_an_index_too() -> None:
    curve = re_embedding_curve("graded", *pair(), OPTIONS)
    assert curve is not None
    assert at_size(curve, 0.9, 1).before.value > 0
