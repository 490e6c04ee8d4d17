"""The methods that are one matrix: whitened anchors, the nearest partial isometry, and ridge
regression.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.maths.geometry.space import fit_space
from app.maths.translators import linear
from app.maths.translators.linear import Pair, projector
from app.maths.translators.methods import fit, resolve
from tests.maths.clouds import normal

seeds = st.integers(0, 2**31)


def pair(seed: int, k: int, dx: int, dy: int) -> Pair:
    return Pair(fit_space(normal(seed, k, dx)), fit_space(normal(seed + 1, k, dy)))


@given(seed=seeds, power=st.floats(0.01, 1), ridge=st.floats(1e-3, 10))
def test_whitened_is_u_times_the_negative_power_of_its_ridged_covariance(seed, power, ridge):
    space = fit_space(normal(seed, 9, 5))
    covariance = space.unit.T @ space.unit + ridge * torch.eye(5, dtype=torch.float64)
    values, vectors = torch.linalg.eigh(covariance)
    expected = space.unit @ vectors @ torch.diag(values ** (-power)) @ vectors.T
    found = projector(space, power=power, ridge=ridge).T
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@given(seed=seeds, k=st.integers(2, 15), dx=st.integers(2, 12), dy=st.integers(2, 12))
def test_procrustes_is_the_polar_factor_of_the_product_of_the_anchors(seed, k, dx, dy):
    anchors = pair(seed, k, dx, dy)
    product = anchors.source.unit.T @ anchors.target.unit
    left, values, right = torch.linalg.svd(product, full_matrices=False)
    rank = min(k - 1, dx, dy)
    expected = left[:, :rank] @ right[:rank]
    options = resolve("procrustes", {"renormalise": False}, anchors=k)
    served = fit("procrustes", anchors.source, anchors.target, options).decoder
    # A direction with a tiny value is known to few digits.
    near = 1e-6 + 1e-7 / float(values[rank - 1])
    torch.testing.assert_close(served.matrix.double(), expected, rtol=0, atol=near)
    assert not served.renormalise


@pytest.mark.parametrize("ridge", [0.0, 0.3])
@pytest.mark.parametrize(("k", "d"), [(5, 9), (9, 9), (10, 9), (40, 9)])
def test_ridge_solves_its_normal_equations_with_the_least_norm(k, d, ridge):
    anchors = pair(4, k, d, 7)
    x, y = anchors.source.unit, anchors.target.unit
    # Rows of sqrt(ridge) I and zeros make least squares of ridge regression.
    wide = torch.cat([x, ridge**0.5 * torch.eye(d, dtype=torch.float64)])
    aims = torch.cat([y, torch.zeros(d, 7, dtype=torch.float64)])
    expected = torch.linalg.lstsq(wide, aims, driver="gelsd", rcond=1e-10).solution
    found = anchors.join(linear.regression(anchors, ridge=ridge))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-8)
