"""Whether two encoders' anchors are the same items in the same order.

Ridge regressions of unit anchors on unit anchors, x to y and y to x, predict rows that they have
not seen. The agreement of predictions and true rows is compared with that of shuffled rows. It is
independent of rotations, does not need equal dimensions, and treats both sides alike.
Source: moments of a sum over a random permutation, Hoeffding 1951.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from app.errors import DegenerateAnchors
from app.maths.anchors.coverage import COVERAGE_RIDGE, reduce_to_span, ridge_factor
from app.maths.geometry.space import fit_space
from app.maths.quality.metrics import unit

MismatchVerdict = Literal["related", "unrelated", "unclear"]

#: Two spaces are related from this z on: the mean agreement in standard deviations of that of
#: shuffled rows. If z were normal, shuffled rows would exceed it once in thirty thousand times
#: (measured: 3.0 at most of 710 pairs).
RELATED_Z = 4.0

#: The z of few rows above this is significant: 1 in 741 normal values exceeds it.
SIGNIFICANT_Z = 3.0

#: With at least this many rows, related spaces of real encoders reach RELATED_Z (measured at 40
#: rows: 6.2 at least of 710 pairs of 24 embeddings).
ENOUGH_FOR_VERDICT = 40

#: A verdict for an answer needs, and reads at most, these numbers of rows. Of 240
#: pairs of real encoders, 20 rows were called unrelated twice, and 15 rows 26 times; no pair whose
#: rows were shifted by one was called related.
FEWEST_JUDGED_ROWS, MAX_JUDGED_ROWS = 20, 1024


def judge_relatedness(
    source: Float[Tensor, "k dx"], target: Float[Tensor, "k dy"], *, seed: int = 0
) -> MismatchVerdict:
    """Whether raw anchors (k, d_x) and (k, d_y), the encoders' own units, are the same items in the
    same order.

    Anchors are unrelated where z is below RELATED_Z, and below ENOUGH_FOR_VERDICT rows, where it is
    below SIGNIFICANT_Z; unclear below FEWEST_JUDGED_ROWS, or where one side is a single vector. At
    most MAX_JUDGED_ROWS rows take part, drawn by seed.
    """
    if len(source) > MAX_JUDGED_ROWS:
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randperm(len(source), generator=generator)[:MAX_JUDGED_ROWS]
        source, target = source[rows], target[rows]
    directions = _judged_directions(
        reduce_to_span(source.double()), reduce_to_span(target.double())
    )
    if directions is None or len(directions[0]) < FEWEST_JUDGED_ROWS:
        return "unclear"
    x, y = directions
    least = RELATED_Z if len(x) >= ENOUGH_FOR_VERDICT else SIGNIFICANT_Z
    return "related" if relatedness(x, y) >= least else "unrelated"


def _judged_directions(
    source: Float64[Tensor, "k dx"], target: Float64[Tensor, "k dy"]
) -> tuple[Float64[Tensor, "m dx"], Float64[Tensor, "m dy"]] | None:
    """The unit anchors of the rows that have a direction on both sides; None where one side is a
    single vector.
    """
    try:
        x, y = fit_space(source).unit, fit_space(target).unit
    except DegenerateAnchors:
        return None
    judged = ((x.abs().amax(dim=1) > 0) & (y.abs().amax(dim=1) > 0)).nonzero().flatten()
    return x[judged], y[judged]


def relatedness(
    source: Float64[Tensor, "k dx"], target: Float64[Tensor, "k dy"], *, seed: int = 0
) -> float:
    """The agreement of matched rows beyond that of shuffled ones, in standard deviations of the
    latter; about normal where no row matches.

    source (k, d_x) and target (k, d_y): unit anchors, k >= 4
    The rows are cut into two random halves. Ridge regression on one half predicts the rows of the
    other. The sum of the dot products with the rows' true partners is compared with that under a
    random permutation of the half, whose mean is 0 once both sides are centred, and whose variance
    is exactly |P Y^T|^2 / (m - 1), without a single permutation. Returns the mean over both halves
    and both directions. (Leaving out one row at a time would not do: every row would then help to
    predict the others by its own partner.)
    """
    order = torch.randperm(len(source), generator=torch.Generator().manual_seed(seed))
    halves = order[: len(order) // 2], order[len(order) // 2 :]
    scores = [
        permutation_score(unit(ridge_predictions(x[known], y[known], x[judged])), y[judged])
        for x, y in ((source, target), (target, source))
        for known, judged in (halves, halves[::-1])
    ]
    return sum(scores) / len(scores)


def permutation_score(predicted: Float64[Tensor, "m d"], true: Float64[Tensor, "m d"]) -> float:
    """The sum of p_i . y_i over rows (m, d), minus its mean, divided by its standard deviation
    under permutations of one side.

    0 where one side does not vary. Source: Hoeffding 1951, see `permutation_moments`.
    """
    total, mean, variance = permutation_moments(predicted @ true.T)
    return (total - mean) / variance**0.5 if variance > 0 else 0.0


class PermutationMoments(NamedTuple):
    """A sum over n items: its value, and its mean and variance over their n! pairings."""

    found: float
    mean: float
    variance: float


def permutation_moments(scores: Float64[Tensor, "n n"]) -> PermutationMoments:
    """Moments of the sum of C[i, pi(i)], at pi = identity, for `scores` C (n, n), any unit. Source:
    Hoeffding 1951, theorem 2.
    """
    size = len(scores)
    observed, mean = float(scores.diagonal().sum()), float(scores.mean())
    if size < 2:
        return PermutationMoments(observed, observed, 0.0)
    residual = scores - scores.mean(dim=1, keepdim=True) - scores.mean(dim=0) + mean
    return PermutationMoments(
        observed,
        size * mean,
        _without_rounding(float(residual.square().sum()), float(scores.square().sum()))
        / (size - 1),
    )


def ridge_predictions(
    source: Float64[Tensor, "k dx"],
    target: Float64[Tensor, "k dy"],
    queries: Float64[Tensor, "n dx"],
    *,
    ridge: float = COVERAGE_RIDGE,
) -> Float64[Tensor, "n dy"]:
    """Ridge regression of target rows (k, d_y) on source rows (k, d_x), applied to queries (n,
    d_x): n x T.
    """
    return queries @ torch.cholesky_solve(source.T @ target, ridge_factor(source, ridge=ridge))


def _without_rounding(squares: float, of: float) -> float:
    """A sum of squares, or 0 where it is the rounding of numbers whose squares add up to `of`."""
    return squares if squares > of * (64 * torch.finfo(torch.float64).eps) ** 2 else 0.0
