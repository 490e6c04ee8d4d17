"""Pseudoinverse, rank and fractional powers of unit anchors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidOption
from app.maths.geometry.space import fit_space
from app.maths.geometry.spectrum import kept_svd, kept_values, pinv, rank_and_ratio, whitened
from tests.maths.clouds import normal

sizes = st.integers(1, 12)


@given(seed=st.integers(0, 2**31), n=sizes, d=sizes, rank=sizes)
def test_pinv_satisfies_the_four_penrose_conditions_at_any_rank(seed, n, d, rank):
    matrix = normal(seed, n, rank) @ normal(seed + 1, rank, d)
    inverse = pinv(matrix)
    atol = (
        1e-11
        * float(matrix.abs().max())
        * float(inverse.abs().max())
        * max(1.0, float(inverse.abs().max()))
    )
    torch.testing.assert_close(matrix @ inverse @ matrix, matrix, rtol=0, atol=max(atol, 1e-9))
    torch.testing.assert_close(inverse @ matrix @ inverse, inverse, rtol=1e-7, atol=max(atol, 1e-9))
    torch.testing.assert_close(matrix @ inverse, (matrix @ inverse).T, rtol=0, atol=max(atol, 1e-9))
    torch.testing.assert_close(inverse @ matrix, (inverse @ matrix).T, rtol=0, atol=max(atol, 1e-9))


@pytest.mark.parametrize(("k", "d"), [(5, 12), (12, 12), (13, 12), (30, 12), (200, 64)])
@pytest.mark.parametrize("offset", [0.0, 1.0, 1e2, 1e4])
def test_centring_makes_the_rank_at_most_k_minus_one_exactly_and_pinv_stays_bounded(k, d, offset):
    unit = fit_space(normal(k + d, k, d) + offset).unit
    rank, condition = rank_and_ratio(kept_svd(unit).values)
    assert rank == min(k - 1, d)
    assert condition < 1e4
    assert float(torch.linalg.matrix_norm(pinv(unit), 2)) < 1e4


def test_kept_svd_gives_the_matrix_back_with_orthonormal_factors():
    matrix = normal(0, 9, 4) @ normal(1, 4, 7)
    left, values, right, _ = kept_svd(matrix)
    assert len(values) == 4
    torch.testing.assert_close((left * values) @ right, matrix)
    torch.testing.assert_close(left.T @ left, torch.eye(4, dtype=torch.float64))
    torch.testing.assert_close(right @ right.T, torch.eye(4, dtype=torch.float64))


def test_a_zero_matrix_has_rank_zero_condition_one_and_a_zero_pseudoinverse():
    zero = torch.zeros(3, 5, dtype=torch.float64)
    assert rank_and_ratio(kept_svd(zero).values) == (0, 1.0)
    assert torch.equal(pinv(zero), zero.T)


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
def test_values_without_left_vectors_are_the_same(shape: tuple[int, int]) -> None:
    matrix = normal(20, *shape)
    matrix[:, -1] = matrix[:, 0]  # one direction is lost
    for noise in (0.0, 1.0):
        whole = kept_svd(matrix, noise=noise)
        values, right = kept_values(matrix, noise=noise)
        assert torch.allclose(values, whole.values, rtol=1e-12, atol=1e-12)
        signs = (right * whole.right).sum(dim=1).sign()
        assert torch.allclose(right * signs[:, None], whole.right, atol=1e-9)
