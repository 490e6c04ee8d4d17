"""The coverage of an anchor set.

The model is the ridge regression that a translator is. With unit anchors U (k, d) and C = U^T U,
the uncovered share of a unit vector v is

    uncovered(v) = ridge * v^T (C + ridge I)^-1 v = 1 - v^T P v,   P = C (C + ridge I)^-1,

in [0, 1]: 1 where v is orthogonal to all anchors, 1/2 (at ridge 1) in the direction of a single
isolated anchor, near 0 among many. It is also the remaining variance of a linear function of v,
given its values at the anchors, divided by its variance before.
Sources: leverage and the variance of a prediction, Atkinson, Donev and Tobias 2007, chapters 9 and
10; one row left out in closed form, Sherman and Morrison 1950.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from app.maths.geometry.space import COSINE_ROWS

#: On the scale of squared singular values of unit anchors: a single isolated anchor covers half of
#: its direction.
COVERAGE_RIDGE = 1.0

#: Two unit anchors with at least this cosine are near each other.
NEAR_COSINE = 0.5


@dataclass(frozen=True)
class Coverage:
    """The coverage of k unit anchors of one encoder.

    effective_rank  exp of the entropy of s_i^2 / sum s^2, in [1, rank] (Roy and Vetterli 2007)
    participation   (sum s^2)^2 / sum s^4, in [1, effective_rank]
    left_out        1 - the mean uncovered share of each anchor by the others: the expected coverage
                    of a new item like them
    isolated        the number of anchors that have no other anchor with a cosine of NEAR_COSINE or
                    more
    nearest         mean over the anchors of the largest cosine to another one
    Anchors at the mean, which have no direction, do not count.
    """

    effective_rank: float
    participation: float
    left_out: float
    isolated: int
    nearest: float


#: The coverage of anchors without a direction.
NO_COVERAGE = Coverage(effective_rank=0.0, participation=0.0, left_out=0.0, isolated=0, nearest=0.0)


def cover(unit: Float64[Tensor, "k d"]) -> Coverage:
    """The coverage of unit anchors (k, d), which are not all zero."""
    unit = unit[unit.abs().amax(dim=1) > 0]
    rank, participation = effective_ranks(unit)
    nearest = nearest_cosines(unit)
    return Coverage(
        effective_rank=rank,
        participation=participation,
        left_out=1.0 - float(uncovered_shares(unit).mean()),
        isolated=int((nearest < NEAR_COSINE).sum()),
        nearest=float(nearest.mean()),
    )


def effective_ranks(unit: Float64[Tensor, "k d"]) -> tuple[float, float]:
    """`effective_rank` and `participation` of unit anchors (k, d)."""
    # The smaller product is many times faster than an SVD; what squaring loses does not matter in
    # shares that add up to 1.
    gram = unit @ unit.T if unit.shape[0] <= unit.shape[1] else unit.T @ unit
    values = torch.linalg.eigvalsh(gram).clamp_min(0.0)
    shares = values / values.sum()
    return float(torch.special.entr(shares).sum().exp()), 1.0 / float(shares.square().sum())


def uncovered_shares(
    unit: Float64[Tensor, "k d"], *, ridge: float = COVERAGE_RIDGE
) -> Float64[Tensor, " k"]:
    """The share of each anchor that the others do not cover: ridge l / (1 - l), with the leverage l
    = u^T (C + ridge I)^-1 u.

    unit (k, d), unit anchors; a row of zeros gives 0. ridge > 0. Returns (k,), in [0, 1].
    """
    leverage = leverages(unit, ridge=ridge)
    unreached: Tensor = (ridge * leverage / (1.0 - leverage)).clamp(0.0, 1.0)
    return unreached


def leverages(
    unit: Float64[Tensor, "k d"], *, ridge: float = COVERAGE_RIDGE
) -> Float64[Tensor, " k"]:
    """u^T (C + ridge I)^-1 u of each row u of unit (k, d), at most 1 / (1 + ridge); ridge > 0.
    Returns (k,).
    """
    unit = reduce_to_span(unit)
    factor = ridge_factor(unit, ridge=ridge)
    leverage: Tensor = torch.linalg.solve_triangular(factor, unit.T, upper=False)
    return leverage.square().sum(dim=0)


def reduce_to_span(rows: Float64[Tensor, "k d"]) -> Float64[Tensor, "k r"]:
    """Rows (k, d) in an orthonormal basis of their span, where that is smaller, r = min(k, d);
    their products do not change.
    """
    if rows.shape[0] >= rows.shape[1]:
        return rows
    triangle: Tensor = torch.linalg.qr(rows.T)[1]
    return triangle.T.contiguous()


def ridge_factor(rows: Float64[Tensor, "k d"], *, ridge: float) -> Float64[Tensor, "d d"]:
    """L (d, d), lower triangular, with L L^T = rows^T rows + ridge I; rows (k, d) of norm 1 or 0;
    ridge > 0.

    By Cholesky: with a ridge no rank must be decided, and the condition is at most (k + ridge) /
    ridge.
    """
    factor: Tensor = torch.linalg.cholesky(
        rows.T @ rows + ridge * torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device)
    )
    return factor


def nearest_cosines(unit: Float64[Tensor, "k d"]) -> Float64[Tensor, " k"]:
    """The largest cosine of each unit anchor to another one; -1 for a single anchor."""
    blocks = []
    for start in range(0, len(unit), COSINE_ROWS):
        block = unit[start : start + COSINE_ROWS] @ unit.T
        block.diagonal(start).fill_(-1.0)
        blocks.append(block.amax(dim=1).clamp(-1.0, 1.0))
    return torch.cat(blocks)
