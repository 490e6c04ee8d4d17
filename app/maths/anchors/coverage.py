"""Ridge regressions between unit anchors.

With unit anchors U (k, d) and C = U^T U, the uncovered share of a unit vector v is

    uncovered(v) = ridge * v^T (C + ridge I)^-1 v = 1 - v^T P v,   P = C (C + ridge I)^-1,

in [0, 1]: 1 where v is orthogonal to all anchors, 1/2 (at ridge 1) in the direction of a single
isolated anchor, near 0 among many.
Source: the variance of a prediction, Atkinson, Donev and Tobias 2007, chapters 9 and 10.
"""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor

#: On the scale of squared singular values of unit anchors: a single isolated anchor covers half of
#: its direction.
COVERAGE_RIDGE = 1.0


def reduce_to_span(rows: Float64[Tensor, "k d"]) -> Float64[Tensor, "k r"]:
    """Rows (k, d) in an orthonormal basis of their span, where that is smaller, r = min(k, d);
    their products do not change.
    """
    if rows.shape[0] >= rows.shape[1]:
        return rows
    triangle: Tensor = torch.linalg.qr(rows.T)[1]
    return triangle.T.contiguous()


def ridge_factor(rows: Float64[Tensor, "k d"]) -> Float64[Tensor, "d d"]:
    """L (d, d), lower triangular, with L L^T = rows^T rows + ridge I at COVERAGE_RIDGE; rows (k, d)
    of norm 1 or 0.

    By Cholesky: with a ridge no rank must be decided, and the condition is at most (k + ridge) /
    ridge.
    """
    factor: Tensor = torch.linalg.cholesky(
        rows.T @ rows
        + COVERAGE_RIDGE * torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device)
    )
    return factor
