"""Curves fit their points, predict the gain of more anchors, and end where data ends."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from app.maths.geometry.space import fit_space
from app.maths.quality import learning_curve as learning
from app.maths.quality.crossfit import cut_into_folds
from app.maths.quality.learning_curve import (
    EXPONENTS,
    FIT_SHARES,
    LearningCurve,
    learning_curve,
    measure_curve,
)
from app.maths.translators.methods import METHODS, fit, resolve
from app.maths.translators.translator import apply
from research.definitions import measure
from tests.maths.clouds import normal


def noisy(seed: int, k: int, dim: int = 12) -> tuple[Tensor, Tensor]:
    source = normal(seed, k, dim)
    return source, source @ normal(seed + 1, dim, dim) + normal(seed + 2, k, dim)


def curve(name: str, source: Tensor, target: Tensor) -> LearningCurve:
    found = learning_curve(name, source, target, resolve(name, {}, anchors=len(source)))
    assert found is not None
    return found


@given(seed=st.integers(0, 2**31))
def test_the_slope_is_that_of_weighted_least_squares(seed):
    sizes = torch.tensor([10.0, 21.0, 30.0, 40.0], dtype=torch.float64)
    values = torch.tensor([0.2, 0.3, 0.35, 0.4], dtype=torch.float64) + 0.1 * normal(seed, 15, 4)
    found = measure_curve("recall", values, sizes)
    decays = (sizes ** -EXPONENTS["recall"]).numpy()
    fitted, _ = np.polyfit(decays, values.mean(dim=0).numpy(), 1, w=sizes.sqrt().numpy())
    assert found.slope == pytest.approx(max(0.0, -fitted), abs=1e-8)


def test_points_are_the_quality_of_held_out_anchors_in_an_index_of_themselves():
    source, target = noisy(0, 60)
    options = resolve("procrustes", {}, anchors=60)
    parted = cut_into_folds(source, target, folds=5, seed=0)
    assert parted is not None
    _, fold_of = parted
    mean, seen = target.mean(dim=0), []
    for fold in range(5):
        held = fold_of == fold
        translator = fit("procrustes", fit_space(source[~held]), fit_space(target[~held]), options)
        seen.append(
            measure(apply(translator, source[held]).vectors.double() - mean, target[held] - mean)
        )
    found = curve("procrustes", source, target)
    assert (found.held, found.index, found.neighbours) == (60, 12.0, 5)
    assert found.sizes == [share * 48 for share in FIT_SHARES]
    assert found.lines["mrr"].last == pytest.approx(sum(each.mrr for each in seen) / 5, abs=1e-9)


@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_has_a_curve_that_does_not_fall(name):
    found = curve(name, *noisy(3, 60))
    assert all(gain >= 0 for gain in found.missing.values())
    assert all(0 <= line.last <= 1 for line in found.lines.values())


def test_copies_are_counted_once_and_seen_by_no_fit_that_is_measured_on_them():
    source, target = normal(8, 30, 6), normal(9, 30, 6)
    found = curve("graded", source.repeat(4, 1), target.repeat(4, 1))
    assert (found.anchors, found.looked, found.held) == (120, 120, 30)
    assert found.lines["recall"].last < 0.5


def test_too_few_distinct_anchors_or_equal_ones_have_no_curve():
    options = resolve("graded", {}, anchors=24)
    assert learning_curve("graded", *noisy(10, 24), options) is None
    assert learning_curve("graded", *noisy(10, 25), options) is not None
    assert (
        learning_curve(
            "graded", normal(11, 5, 3).repeat(20, 1), normal(12, 5, 3).repeat(20, 1), options
        )
        is None
    )
    lonely = torch.zeros(40, 3, dtype=torch.float64)
    lonely[0] = 1.0
    assert learning_curve("graded", lonely, normal(13, 40, 3), options) is None


def test_a_curve_samples_very_many_anchors_and_does_not_extrapolate_too_far(monkeypatch):
    monkeypatch.setattr(learning, "MAX_CURVE_ANCHORS", 50)
    monkeypatch.setattr(learning, "CURVE_HELD_OUT", 20)
    found = curve("graded", *noisy(15, 90))
    assert (found.anchors, found.looked, found.held) == (90, 50, 20)
    assert found.missing["recall"] > 0
    assert curve("graded", *noisy(15, 101)).missing == {}
