"""Curves fit their points, predict the gain of more anchors, and end where data ends."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from app.maths.quality import learning_curve as learning
from app.maths.quality.learning_curve import gains_of_all_anchors, slope_of
from app.maths.translators.methods import METHODS, resolve
from tests.maths.clouds import normal


def noisy(seed: int, k: int, dim: int = 12) -> tuple[Tensor, Tensor]:
    source = normal(seed, k, dim)
    return source, source @ normal(seed + 1, dim, dim) + normal(seed + 2, k, dim)


def gains(name: str, source: Tensor, target: Tensor) -> dict[str, float]:
    return gains_of_all_anchors(name, source, target, resolve(name, {}, anchors=len(source)))


@given(seed=st.integers(0, 2**31), exponent=st.sampled_from(learning.EXPONENTS))
def test_the_slope_is_that_of_weighted_least_squares(seed, exponent):
    sizes = torch.tensor([10.0, 21.0, 30.0, 40.0], dtype=torch.float64)
    means = torch.tensor([0.2, 0.3, 0.35, 0.4], dtype=torch.float64) + 0.03 * normal(seed, 4)
    decays = (sizes**-exponent).numpy()
    fitted, _ = np.polyfit(decays, means.numpy(), 1, w=sizes.sqrt().numpy())
    assert slope_of(means, sizes, exponent) == pytest.approx(max(0.0, -fitted), abs=1e-8)


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


def test_a_curve_samples_very_many_anchors_and_does_not_extrapolate_too_far(monkeypatch):
    monkeypatch.setattr(learning, "MAX_CURVE_ANCHORS", 50)
    monkeypatch.setattr(learning, "CURVE_HELD_OUT", 20)
    assert gains("graded", *noisy(15, 100))["mrr"] > 0
    assert gains("graded", *noisy(15, 101)) == {}
