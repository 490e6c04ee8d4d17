"""Joint methods: the nearest partial isometry, and ridge regression."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from app.maths.geometry.space import fit_space
from app.maths.translators import linear
from research.definitions import pair_of
from tests.maths.clouds import normal

seeds = st.integers(0, 2**31)


def procrustes(source: Tensor, target: Tensor) -> Tensor:
    pair = pair_of(source, target)
    return pair.join(linear.procrustes(pair))


def ridge(source: Tensor, target: Tensor, *, ridge: float) -> Tensor:
    pair = pair_of(source, target)
    return pair.join(linear.regression(pair, ridge=ridge))


@given(seed=seeds, k=st.integers(2, 15), dx=st.integers(2, 10), dy=st.integers(2, 10))
def test_procrustes_is_a_partial_isometry_of_rank_at_most_k_minus_one(seed, k, dx, dy):
    values = torch.linalg.svdvals(
        procrustes(fit_space(normal(seed, k, dx)).unit, fit_space(normal(seed + 1, k, dy)).unit)
    )
    rank = min(k - 1, dx, dy)
    torch.testing.assert_close(values[:rank], torch.ones(rank, dtype=torch.float64))
    torch.testing.assert_close(
        values[rank:], torch.zeros(len(values) - rank, dtype=torch.float64), rtol=0, atol=1e-10
    )


@pytest.mark.parametrize(("k", "d"), [(5, 9), (9, 9), (10, 9), (40, 9)])
def test_ridge_zero_is_least_squares_of_least_norm(k, d):
    x, y = fit_space(normal(4, k, d)).unit, fit_space(normal(5, k, 7)).unit
    expected = torch.linalg.lstsq(x, y, driver="gelsd", rcond=1e-10).solution
    torch.testing.assert_close(ridge(x, y, ridge=0.0), expected, rtol=0, atol=1e-8)


@given(seed=seeds, k=st.integers(2, 6), dx=st.integers(7, 12), dy=st.integers(7, 12))
def test_procrustes_of_few_anchors_is_the_polar_factor_of_the_whole_product(seed, k, dx, dy):
    """Below k = d the SVD is taken of a k x k matrix; above it, and here, of U_x^T U_y itself."""
    source, target = fit_space(normal(seed, k, dx)).unit, fit_space(normal(seed + 1, k, dy)).unit
    left, values, right = torch.linalg.svd(source.T @ target, full_matrices=False)
    keep = values > 1e-10
    torch.testing.assert_close(
        procrustes(source, target), left[:, keep] @ right[keep], rtol=0, atol=1e-6
    )
