"""Harmful anchors: the gain in the translation of the other anchors if one pair were removed.

The model is ridge regression of unit anchors U_y on unit anchors U_x, where leaving rows out has a
closed form. With U_x = W diag(s) V^T, H = W diag(s^2 / (s^2 + ridge)) W^T, residuals E = U_y - H
U_y and a_i = 1 - H_ii, the residual of anchor j is e_j / a_j if it is left out, and if it is left
out together with anchor i,

    (a_i e_j + H_ij e_i) / (a_i a_j - H_ij^2),

row j of (I - H_SS)^-1 E_S for S = {i, j}. The two means and the unit anchors remain those of all
anchors.
Sources: Cook and Weisberg 1982, chapter 3 (deleted residuals of one row and several); Rousseeuw and
Hubert 2011 (robust scores).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from app.errors import InvalidOption
from app.maths.geometry.robust import robust_scores
from app.maths.geometry.space import Space, fit_space
from app.maths.geometry.spectrum import check_ridge, usual_ridge
from app.maths.quality.crossfit import FEWEST_DISTINCT

#: Pairs of anchors that are computed: all for up to 2,896 anchors; of more anchors, fewer others
#: judge each.
MOST_INFLUENCE_PAIRS = 2**23

#: Pairs that are stored at a time, 8 bytes each, in about a dozen matrices.
PAIRS_PER_STEP = 2**20

#: A row is harmful when its score exceeds this; see `influence`.
OUTSTANDING_SCORE = 5.0


@dataclass(frozen=True, eq=False)
class Influence:
    """The effect of leaving out each of k anchors on the translation of the others, each by a fit
    without itself.

    gain     (k,) the rise of the mean of cos(translated_j, native_j) over the other anchors j;
             negative: the row helps
    own      (k,) cos(translated_i, native_i) of the row itself, by a fit without it
    hurting  the rows that should be removed, worst first
    judges   the number of other anchors that each gain is a mean over
    ridge    that of the regression
    """

    gain: Float64[Tensor, " k"]
    own: Float64[Tensor, " k"]
    hurting: list[int]
    judges: int
    ridge: float


class _RidgeFit(NamedTuple):
    """A ridge regression of unit anchors on unit anchors.

    factor    (k, r) W diag(sqrt f), so that H is its product with its transpose
    residual  (k, d_y) E
    native    (k, d_y) U_y
    free      (k,) a
    lengths, dots, sizes  (k,) |e_i|^2, y_i . e_i, |y_i|^2
    """

    factor: Float64[Tensor, "k r"]
    residual: Float64[Tensor, "k dy"]
    native: Float64[Tensor, "k dy"]
    free: Float64[Tensor, " k"]
    lengths: Float64[Tensor, " k"]
    dots: Float64[Tensor, " k"]
    sizes: Float64[Tensor, " k"]

    def of(self, rows: Int64[Tensor, " m"]) -> _RidgeFit:
        """The same for some rows."""
        return _RidgeFit(*(each[rows] for each in self))


def influence(
    source: Float[Tensor, "k dx"],
    target: Float[Tensor, "k dy"],
    *,
    ridge: float | None = None,
    seed: int = 0,
) -> Influence:
    """The influence of each anchor pair on the translation of the others.

    source  (k, d_x) and target (k, d_y): raw anchors, the encoders' own units, row i the same item
    ridge   > 0, on the scale of squared singular values of U_x; None: `spectrum.usual_ridge` of the
            source
    seed    draws the judges where k^2 exceeds MOST_INFLUENCE_PAIRS
    A row is harmful when the others would gain without it and it stands out: the mean of two robust
    scores exceeds OUTSTANDING_SCORE, one of its gain and one of how badly it is translated itself,
    each (value - median) / (1.4826 median absolute deviation). Below FEWEST_DISTINCT anchors no row
    is named. The scores compare a row with the others: where a fifth of the rows are wrong, a third
    of those are named.
    Raises InvalidOption, and as `fit_space`.
    """
    x, y = fit_space(source), fit_space(target)
    check_ridge(ridge)
    if ridge == 0.0:
        raise InvalidOption(
            "Influence needs a ridge above 0, because a single row may span a direction.",
            field="options.ridge",
        )
    ridge = usual_ridge(x.spectrum, dim=x.dim) if ridge is None else ridge
    fit, size = _ridge_fit(x, y, ridge), x.size
    judges = torch.arange(size, device=fit.free.device)
    if size**2 > MOST_INFLUENCE_PAIRS:
        judges = (
            torch.randperm(size, generator=torch.Generator().manual_seed(seed))[
                : MOST_INFLUENCE_PAIRS // size
            ]
            .sort()
            .values.to(judges)
        )
    step = max(1, PAIRS_PER_STEP // len(judges))
    others = fit.of(judges)
    chunks = torch.split(torch.arange(size, device=fit.free.device), step)
    gain = torch.cat(
        [_mean_gains(fit.of(rows), others, is_other=rows[:, None] != judges) for rows in chunks]
    )
    own = _left_out_cosines(fit)
    return Influence(gain, own, _hurting_rows(gain, own), min(len(judges), size - 1), ridge)


def _ridge_fit(source: Space, target: Space, ridge: float) -> _RidgeFit:
    left, values, *_ = source.spectrum
    squared = values.square()
    factor = left * (squared / (squared + ridge)).sqrt()
    residual = target.unit - factor @ (factor.T @ target.unit)
    lengths, dots, sizes = (
        sum_of.sum(dim=1)
        for sum_of in (residual.square(), target.unit * residual, target.unit.square())
    )
    return _RidgeFit(
        factor, residual, target.unit, 1.0 - factor.square().sum(dim=1), lengths, dots, sizes
    )


def _left_out_cosines(fit: _RidgeFit) -> Float64[Tensor, " k"]:
    """The cosine of each anchor by a fit without it, which predicts p = y - e / a."""
    return _cosine_from_products(fit.sizes, fit.dots / fit.free, fit.lengths / fit.free.square())


def _mean_gains(
    rows: _RidgeFit, judges: _RidgeFit, *, is_other: Bool[Tensor, "c m"]
) -> Float64[Tensor, " c"]:
    """The mean rise of cos over the judges, the row itself excluded, if the row is left out."""
    leverage = rows.factor @ judges.factor.T
    residuals = rows.residual @ judges.residual.T
    crossed = rows.residual @ judges.native.T  # y_j . e_i
    free = rows.free[:, None]
    determinant = free * judges.free - leverage.square()
    squared = free.square() * judges.lengths + leverage * (
        2.0 * free * residuals + leverage * rows.lengths[:, None]
    )
    squared = squared / determinant.square()
    dots = (free * judges.dots + leverage * crossed) / determinant
    rises = torch.where(
        is_other,
        _cosine_from_products(judges.sizes, dots, squared) - _left_out_cosines(judges),
        0.0,
    )
    gains: Tensor = rises.sum(dim=1) / is_other.sum(dim=1).clamp_min(1)
    return gains


def _cosine_from_products(
    native: Float64[Tensor, " ..."], dot: Float64[Tensor, " ..."], squared: Float64[Tensor, " ..."]
) -> Float64[Tensor, " ..."]:
    """cos(p, y) of p = y - e, from |y|^2 (1, or 0 of an anchor at the mean), y . e and |e|^2; 0
    where either has no direction.
    """
    length = native - 2.0 * dot + squared
    known = length > 64 * torch.finfo(torch.float64).eps * (native + squared)
    cosine: Tensor = torch.where(
        known, (native - dot) / torch.where(known, length, 1.0).sqrt(), 0.0
    )
    return cosine.clamp(-1.0, 1.0)


#: Smaller gains are rounding.
LEAST_HARMFUL_GAIN = 1e-9


def _hurting_rows(gain: Float64[Tensor, " k"], own: Float64[Tensor, " k"]) -> list[int]:
    if len(gain) < FEWEST_DISTINCT:
        return []
    rounding = torch.finfo(torch.float64).eps * len(gain)  # the spread where most values are equal
    scores = [robust_scores(each, least=rounding) for each in (gain, own)]
    outstanding: Bool[Tensor, " k"] = (scores[0] - scores[1]) / 2.0 > OUTSTANDING_SCORE
    rows = (outstanding & (gain > LEAST_HARMFUL_GAIN)).nonzero().flatten()
    return rows[gain[rows].argsort(descending=True, stable=True)].tolist()
