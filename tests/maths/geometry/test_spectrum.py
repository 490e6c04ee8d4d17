"""Pseudoinverse, rank and fractional powers of unit anchors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidOption
from app.maths.geometry.space import fit_space
from app.maths.geometry.spectrum import kept_svd, rank_and_condition, whitened
from tests.maths.clouds import normal


@pytest.mark.parametrize(("k", "d"), [(5, 12), (12, 12), (13, 12), (30, 12)])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_centring_makes_the_rank_at_most_k_minus_one_exactly(k, d, offset):
    unit = fit_space(normal(k + d, k, d) + offset).unit
    rank, condition = rank_and_condition(unit, noise=0.0)
    assert rank == min(k - 1, d)
    assert condition < 1e4


def test_kept_svd_gives_the_matrix_back_with_orthonormal_factors():
    matrix = normal(0, 9, 4) @ normal(1, 4, 7)
    left, values, right, _ = kept_svd(matrix)
    assert len(values) == 4
    torch.testing.assert_close((left * values) @ right, matrix)
    torch.testing.assert_close(left.T @ left, torch.eye(4, dtype=torch.float64))
    torch.testing.assert_close(right @ right.T, torch.eye(4, dtype=torch.float64))


def test_a_zero_matrix_has_rank_zero_and_condition_one():
    zero = torch.zeros(3, 5, dtype=torch.float64)
    assert rank_and_condition(zero, noise=0.0) == (0, 1.0)


@given(seed=st.integers(0, 2**31), power=st.floats(0.01, 1), ridge=st.floats(1e-3, 10))
def test_whitened_is_u_times_the_negative_power_of_its_ridged_covariance(seed, power, ridge):
    unit = fit_space(normal(seed, 9, 5)).unit
    values, vectors = torch.linalg.eigh(unit.T @ unit + ridge * torch.eye(5, dtype=torch.float64))
    expected = unit @ vectors @ torch.diag(values ** (-power)) @ vectors.T
    torch.testing.assert_close(
        whitened(unit, power=power, ridge=ridge), expected, rtol=0, atol=1e-9
    )


@pytest.mark.parametrize("power", [-0.1, 1.1, float("nan"), float("inf")])
def test_a_power_outside_zero_to_one_is_refused_without_naming_a_field(power):
    with pytest.raises(InvalidOption) as caught:
        whitened(normal(3, 4, 3), power=power, ridge=1.0)
    assert caught.value.field is None


@pytest.mark.parametrize("ridge", [-1e-9, float("nan"), float("inf")])
@pytest.mark.parametrize("power", [0.0, 0.5])
def test_a_negative_or_non_finite_ridge_is_refused_whatever_the_power(ridge, power):
    with pytest.raises(InvalidOption) as caught:
        whitened(normal(3, 4, 3), power=power, ridge=ridge)
    assert caught.value.field == "options.ridge"


@pytest.mark.parametrize("shape", [(60, 8), (8, 60), (8, 8), (1, 4)])
def test_rank_and_condition_are_those_of_the_kept_values(shape: tuple[int, int]) -> None:
    matrix = normal(20, *shape)
    matrix[:, -1] = matrix[:, 0]  # one direction is lost
    for noise in (0.0, 1.0):
        whole = kept_svd(matrix, noise=noise)
        rank, condition = rank_and_condition(matrix, noise=noise)
        assert rank == len(whole.values)
        assert condition == pytest.approx(float(whole.values[0] / whole.values[-1]))
