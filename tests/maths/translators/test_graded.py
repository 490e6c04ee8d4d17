"""One family holds the paper's inverse, ridge regression and the Parseval frames."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from app.maths.geometry.space import fit_space
from app.maths.translators import linear
from research.definitions import pair_of

sizes = pytest.mark.parametrize(("k", "dx", "dy"), [(6, 9, 11), (9, 9, 9), (30, 8, 12)])


def unit(seed: int, k: int, d: int) -> Tensor:
    return fit_space(
        torch.randn(k, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    ).unit


@sizes
def test_powers_zero_and_one_are_irp_ridge(k, dx, dy):
    x, y = unit(0, k, dx), unit(1, k, dy)
    found = linear.projector(x, power=0.0, ridge=0.3) @ linear.graded_decoder(
        y, power=1.0, ridge=0.3
    )
    torch.testing.assert_close(
        found, x.T @ linear.graded_decoder(y, power=1.0, ridge=0.3), rtol=0, atol=1e-8
    )
    normal_equations = y.T @ y + 0.3 * torch.eye(dy, dtype=torch.float64)
    torch.testing.assert_close(
        found, torch.linalg.solve(normal_equations, y.T @ x).T, rtol=0, atol=1e-8
    )


@sizes
def test_powers_one_and_zero_are_ridge_regression(k, dx, dy):
    x, y = unit(2, k, dx), unit(3, k, dy)
    pair = pair_of(x, y)
    found = linear.projector(x, power=1.0, ridge=0.3) @ linear.graded_decoder(
        y, power=0.0, ridge=0.3
    )
    torch.testing.assert_close(
        found, pair.join(linear.regression(pair, ridge=0.3)), rtol=0, atol=1e-8
    )
    normal_equations = x.T @ x + 0.3 * torch.eye(dx, dtype=torch.float64)
    torch.testing.assert_close(
        found, torch.linalg.solve(normal_equations, x.T @ y), rtol=0, atol=1e-8
    )
