"""What the singular values of unit anchors say, and the matrices made from them: always SVD in float64, never an inverse."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from app.errors import InvalidOption

#: beyond this a ridge only moves the numbers towards underflow: squared singular values of unit anchors add up to k at most
LARGEST_RIDGE = 1e6


def rank_tolerance(shape: tuple[int, ...], largest: float) -> float:
    """The singular value below which a direction is rounding noise: max(n, d) * eps * the largest one."""
    return max(shape) * torch.finfo(torch.float64).eps * largest


def kept_svd(
    matrix: Float64[Tensor, "n d"],
) -> tuple[Float64[Tensor, "n r"], Float64[Tensor, " r"], Float64[Tensor, "r d"]]:
    """W (n, r), s (r,), V^T (r, d) of matrix = W diag(s) V^T, without the directions that are rounding noise.

    Anchors centred on their own mean have rank k - 1 exactly, so an inverse of all of them would divide by noise.
    """
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    largest = float(values[0]) if values.numel() else 0.0
    rank = int((values > rank_tolerance(matrix.shape, largest)).sum())
    return left[:, :rank], values[:rank], right[:rank]


def pinv(matrix: Float64[Tensor, "n d"]) -> Float64[Tensor, "d n"]:
    """Moore-Penrose pseudoinverse V diag(1/s) W^T over the kept singular values."""
    left, values, right = kept_svd(matrix)
    return (right.T / values) @ left.T


def rank_and_condition(matrix: Float64[Tensor, "n d"]) -> tuple[int, float]:
    """How many singular values are kept, and the largest over the smallest kept one (1 for an empty matrix)."""
    _, values, _ = kept_svd(matrix)
    return len(values), float(values[0] / values[-1]) if len(values) else 1.0


def whitened(unit: Float64[Tensor, "k d"], *, power: float, ridge: float) -> Float64[Tensor, "k d"]:
    """U (U^T U + ridge I)^-power, by SVD: W diag(s (s^2 + ridge)^-power) V^T for U = W diag(s) V^T.

    unit   (k, d), unit anchors
    power  in [0, 1], how much of the anchors' covariance is undone; 0 returns U itself
    ridge  in [0, LARGEST_RIDGE], on the scale of squared singular values of U (whose sum is at most k);
           at 0 the pseudoinverse's convention
    Returns (k, d). Raises InvalidOption; a wrong power is not given a field, for the caller knows which of the two it is.
    """
    if not (math.isfinite(power) and 0.0 <= power <= 1.0):
        raise InvalidOption(f"a power must lie in [0, 1], got {power}")
    if not 0.0 <= ridge <= LARGEST_RIDGE:
        raise InvalidOption(f"ridge must lie in [0, {LARGEST_RIDGE:g}], got {ridge}", field="options.ridge")
    if power == 0.0:
        return unit
    left, values, right = kept_svd(unit)
    return (left * (values * (values.square() + ridge).pow(-power))) @ right
