"""A space follows its definition, and refuses vectors that no formula can use."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from app.errors import DegenerateAnchors, DimensionMismatch, EmptyVectors, NonFinite, OutOfRange
from app.maths.geometry.space import LARGEST_MAGNITUDE, check_vectors, fit_space, row_norms
from research.definitions import relative
from tests.maths.clouds import normal


def test_mean_scale_and_unit_anchors_are_those_of_the_definition():
    anchors = normal(0, 7, 5) * 3 + 2
    space = fit_space(anchors)
    raw = anchors.numpy()
    mean = sum(raw) / 7
    norms = [np.sqrt(sum((row - mean) ** 2)) for row in raw]
    np.testing.assert_allclose(space.mean.numpy(), mean, rtol=1e-12)
    assert space.scale == pytest.approx(sum(norms) / 7, rel=1e-12)
    np.testing.assert_allclose(
        space.unit.numpy(),
        [(row - mean) / norm for row, norm in zip(raw, norms, strict=True)],
        rtol=1e-12,
    )
    assert (space.size, space.dim) == (7, 5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_nan_and_infinity_are_refused_in_every_dtype_naming_the_rows(bad, dtype):
    vectors = torch.ones(6, 3, dtype=dtype)
    vectors[1, 0] = bad
    vectors[4, 2] = bad
    with pytest.raises(NonFinite) as caught:
        check_vectors(vectors)
    assert caught.value.rows == [1, 4]


def test_magnitudes_above_the_largest_are_refused_naming_the_rows_and_the_largest_itself_is_not():
    vectors = torch.ones(3, 2, dtype=torch.float64)
    vectors[1, 1] = -LARGEST_MAGNITUDE
    check_vectors(vectors)
    vectors[2, 0] = 2 * LARGEST_MAGNITUDE
    with pytest.raises(OutOfRange) as caught:
        check_vectors(vectors)
    assert caught.value.rows == [2]


def test_no_vectors_no_numbers_and_a_wrong_dimension_are_refused():
    with pytest.raises(EmptyVectors):
        check_vectors(torch.zeros(0, 3))
    with pytest.raises(EmptyVectors):
        check_vectors(torch.zeros(3, 0))
    with pytest.raises(DimensionMismatch):
        check_vectors(torch.zeros(3, 4), dim=5)
    with pytest.raises(DimensionMismatch):
        relative(torch.zeros(3, 4), fit_space(normal(4, 5, 3)))


@pytest.mark.parametrize(
    "anchors",
    [normal(5, 1, 8), normal(6, 1, 8).expand(9, 8), torch.zeros(4, 3), torch.full((7, 3), 0.1)],
)
def test_one_anchor_and_anchors_that_are_all_the_same_are_degenerate(anchors):
    with pytest.raises(DegenerateAnchors):
        fit_space(anchors)


@pytest.mark.parametrize("offset", [0.0, 5.0])
def test_an_anchor_equal_to_the_mean_has_no_direction(offset):
    half = normal(7, 10, 6)
    space = fit_space(torch.cat([half, -half, 0 * half[:1]]) + offset)
    assert not space.unit[-1].any()
    assert space.mean.any() == (offset > 0)
    assert row_norms(space.unit)[:-1].min() > 0.999
