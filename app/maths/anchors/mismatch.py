"""Whether two encoders' anchors are the same items in the same order.

Ridge regressions of unit anchors on unit anchors, x to y and y to x, predict rows that they have
not seen. The agreement of predictions and true rows is compared with that of shuffled rows. It is
independent of rotations, does not need equal dimensions, and treats both sides alike.
Source: moments of a sum over a random permutation, Hoeffding 1951.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from app.errors import DegenerateAnchors
from app.maths.geometry.space import draw_rows, fit_space
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
    source: Float[Tensor, "k dx"], target: Float[Tensor, "k dy"]
) -> MismatchVerdict:
    """Whether raw anchors (k, d_x) and (k, d_y), the encoders' own units, are the same items in the
    same order.

    Anchors are unrelated where z is below RELATED_Z, and below ENOUGH_FOR_VERDICT rows, where it is
    below SIGNIFICANT_Z; unclear below FEWEST_JUDGED_ROWS, or where one side is a single vector. At
    most MAX_JUDGED_ROWS rows take part, drawn at random.
    """
    if len(source) > MAX_JUDGED_ROWS:
        rows = draw_rows(len(source), MAX_JUDGED_ROWS)
        source, target = source[rows], target[rows]
    directions = _judged_directions(
        _reduce_to_span(source.double()), _reduce_to_span(target.double())
    )
    if directions is None or len(directions[0]) < FEWEST_JUDGED_ROWS:
        return "unclear"
    x, y = directions
    least = RELATED_Z if len(x) >= ENOUGH_FOR_VERDICT else SIGNIFICANT_Z
    return "related" if relatedness(x, y) >= least else "unrelated"


def _reduce_to_span(rows: Float64[Tensor, "k d"]) -> Float64[Tensor, "k r"]:
    """Rows (k, d) in an orthonormal basis of their span, where that is smaller, r = min(k, d);
    their products do not change.
    """
    return rows if len(rows) >= rows.shape[1] else torch.linalg.qr(rows.T).R.T.contiguous()


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


def relatedness(source: Float64[Tensor, "k dx"], target: Float64[Tensor, "k dy"]) -> float:
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
    order = draw_rows(len(source))
    halves = order[: len(order) // 2], order[len(order) // 2 :]
    scores = [
        permutation_score(unit(ridge_predictions(x[known], y[known], x[judged])), y[judged])
        for x, y in ((source, target), (target, source))
        for known, judged in (halves, halves[::-1])
    ]
    return sum(scores) / len(scores)


def permutation_score(predicted: Float64[Tensor, "m d"], true: Float64[Tensor, "m d"]) -> float:
    """The sum of p_i . y_i over rows (m, d), m >= 2, minus its mean, divided by its standard
    deviation under permutations of one side; 0 where one side does not vary.

    With scores C_ij = p_i . y_j and C' = C - mean of its row - mean of its column + mean of all,
    the variance is |C'|^2 / (m - 1). Source: Hoeffding 1951, theorem 2.
    """
    scores = predicted @ true.T
    size, mean = len(scores), float(scores.mean())
    residual = scores - scores.mean(dim=1, keepdim=True) - scores.mean(dim=0) + mean
    squares = float(residual.square().sum())
    # Less is the rounding of the scores.
    if squares <= float(scores.square().sum()) * (64 * torch.finfo(torch.float64).eps) ** 2:
        return 0.0
    deviation = math.sqrt(squares / (size - 1))
    return (float(scores.diagonal().sum()) - size * mean) / deviation


def ridge_predictions(
    source: Float64[Tensor, "k dx"],
    target: Float64[Tensor, "k dy"],
    queries: Float64[Tensor, "n dx"],
) -> Float64[Tensor, "n dy"]:
    """Ridge regression of target rows (k, d_y) on source rows (k, d_x), with ridge 1, applied to
    queries (n, d_x): n x T.
    """
    gram = source @ source.T  # n X^T (X X^T + I)^-1 Y: there are fewer rows than dimensions
    gram.diagonal().add_(1.0)
    return queries @ source.T @ torch.cholesky_solve(target, torch.linalg.cholesky(gram))
