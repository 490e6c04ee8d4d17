"""Rank, condition and kept directions of unit anchors."""

from __future__ import annotations

import pytest

from app.maths.geometry.space import fit_space
from app.maths.geometry.spectrum import kept_svd, rank_and_condition
from tests.maths.clouds import normal


@pytest.mark.parametrize(("k", "d"), [(5, 12), (13, 12), (30, 12)])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_centring_makes_the_rank_at_most_k_minus_one_exactly(k, d, offset):
    unit = fit_space(normal(k + d, k, d) + offset).unit
    rank, condition = rank_and_condition(unit, noise=0.0)
    assert rank == min(k - 1, d)
    assert condition < 1e4


@pytest.mark.parametrize("shape", [(60, 8), (8, 60), (8, 8), (1, 4)])
def test_rank_and_condition_are_those_of_the_kept_values(shape: tuple[int, int]) -> None:
    matrix = normal(20, *shape)
    matrix[:, -1] = matrix[:, 0]  # one direction is lost
    for noise in (0.0, 1.0):
        whole = kept_svd(matrix, noise=noise)
        rank, condition = rank_and_condition(matrix, noise=noise)
        assert rank == len(whole.values)
        assert condition == pytest.approx(float(whole.values[0] / whole.values[-1]))
    assert rank_and_condition(0 * matrix, noise=0.0) == (0, 1.0)
