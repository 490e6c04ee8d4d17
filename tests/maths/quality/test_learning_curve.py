"""Curves fit their points, predict the gain of more anchors, and end where data ends."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from app.maths.quality import learning_curve as learning
from app.maths.quality.crossfit import hold_out
from app.maths.quality.learning_curve import gains_of_all_anchors
from app.maths.translators.methods import METHODS, resolve
from tests.maths.clouds import normal


def noisy(seed: int, k: int, dim: int = 12) -> tuple[Tensor, Tensor]:
    source = normal(seed, k, dim)
    return source, source @ normal(seed + 1, dim, dim) + normal(seed + 2, k, dim)


def gains(name: str, source: Tensor, target: Tensor) -> dict[str, float]:
    options = resolve(name, {}, anchors=len(source))
    held = hold_out(name, source, target, options)
    return {} if held is None else gains_of_all_anchors(name, source, target, options, held)


@pytest.mark.parametrize("name", list(METHODS))
def test_in_every_method_more_anchors_lower_the_noise_and_raise_the_odds(name):
    found = gains(name, *noisy(3, 60))
    assert found["recall"] <= 0 <= found["mrr"]


def test_too_few_distinct_anchors_or_equal_ones_have_no_curve():
    assert gains("graded", *noisy(10, 24)) == {}
    assert gains("graded", *noisy(10, 25)) != {}
    assert gains("graded", normal(11, 5, 3).repeat(20, 1), normal(12, 5, 3).repeat(20, 1)) == {}
    lonely = torch.zeros(40, 3, dtype=torch.float64)
    lonely[0] = 1.0
    assert gains("graded", lonely, normal(13, 40, 3)) == {}


def test_very_many_anchors_have_no_curve(monkeypatch):
    monkeypatch.setattr(learning, "MAX_CURVE_ANCHORS", 100)
    monkeypatch.setattr(learning, "CURVE_HELD_OUT", 20)
    assert gains("graded", *noisy(15, 100))["mrr"] > 0
    assert gains("graded", *noisy(15, 101)) == {}
