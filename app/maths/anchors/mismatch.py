"""Whether two encoders' anchors are the same items in the same order, and which rows probably are
not.

All results come from two ridge regressions of unit anchors on unit anchors, x to y and y to x, for
which leaving a row out has a closed form. With H = U_x (U_x^T U_x + ridge I)^-1 U_x^T, the other
rows predict for row i

    p_i = ((H U_y)_i - H_ii y_i) / (1 - H_ii),

and q_i likewise from y to x. The agreement of row i is (cos(p_i, y_i) + cos(q_i, x_i)) / 2. It is
independent of rotations, does not need equal dimensions, and treats both sides alike. The two means
and the unit anchors remain those of all rows.
Sources: Cook and Weisberg 1982, chapter 2 (deleted residuals); robust scores, Rousseeuw and Hubert
2011; moments of a sum over a random permutation, Hoeffding 1951.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from app.errors import DegenerateAnchors
from app.maths.anchors.coverage import COVERAGE_RIDGE, reduce_to_span, ridge_factor
from app.maths.anchors.health import robust_scores
from app.maths.geometry.space import COSINE_ROWS, fit_space
from app.maths.quality.crossfit import FEWEST_DISTINCT
from app.maths.quality.evidence import SIGNIFICANT_Z, permutation_moments
from app.maths.quality.metrics import cka, unit

MismatchVerdict = Literal["related", "unrelated", "unclear"]

#: Two spaces are related from this z on: the mean agreement in standard deviations of that of
#: shuffled rows. If z were normal, shuffled rows would exceed it once in thirty thousand times
#: (measured: 3.0 at most of 710 pairs).
RELATED_Z = 4.0

#: With at least this many rows, related spaces of real encoders reach RELATED_Z (measured at 40
#: rows: 6.2 at least of 710 pairs of 24 embeddings).
ENOUGH_FOR_VERDICT = 40

#: A verdict for an answer needs, and reads at most, these numbers of rows. Of 240
#: pairs of real encoders, 20 rows were called unrelated twice, and 15 rows 26 times; no pair whose
#: rows were shifted by one was called related.
FEWEST_JUDGED_ROWS, MAX_JUDGED_ROWS = 20, 1024

#: With fewer rows, a single wrong row cannot be identified.
FEWEST_FOR_SUSPECTS = 20

#: A row is named when its agreement is this many robust standard deviations below the median, and
#: at least this share of the other rows fit better in both directions; or when this larger share
#: does, which also finds rows where half of them are wrong. Of five rows of 300 sentences exchanged
#: between topics, 98 % are named; of right rows, .6 % at most by text encoders, 3 % by small image
#: encoders.
LOW_SCORE, BETTER_SHARE, MUCH_BETTER_SHARE = -3.0, 0.02, 0.2

#: The least spread of agreements that counts, a cosine.
LEAST_AGREEMENT_SPREAD = 0.01


class Suspect(NamedTuple):
    """A row that is probably not the same item on both sides.

    agreement  of the module, in [-1, 1]
    score      robust standard deviations from the median agreement; negative
    better     the share of the other rows that fit better, in the direction with fewer of them
    fits       the row whose other half fits best: of two swapped rows, each other
    """

    row: int
    agreement: float
    score: float
    better: float
    fits: int


@dataclass(frozen=True)
class Comparison:
    """Two encoders compared on k parallel anchors.

    verdict    unclear: too few rows for a verdict
    z          mean agreement of matched rows, in standard deviations of that of shuffled ones; None
               below FEWEST_DISTINCT rows
    agreement  the median over the rows; None where z is
    cka        debiased linear CKA of the raw anchors; None below 4 rows
    suspects   the worst first; empty where the verdict is not `related`
    shift      of unrelated spaces: 1 or -1 where row i of one side is related to row i + shift of
               the other; else 0
    """

    verdict: MismatchVerdict
    z: float | None
    agreement: float | None
    cka: float | None
    suspects: list[Suspect]
    shift: int = 0


class _Sides(NamedTuple):
    """x (k, d_x) and y (k, d_y), unit anchors; p (k, d_y) and q (k, d_x), unit predictions from the
    other rows.
    """

    x: Float64[Tensor, "k dx"]
    y: Float64[Tensor, "k dy"]
    p: Float64[Tensor, "k dy"]
    q: Float64[Tensor, "k dx"]


def compare_anchors(source: Float[Tensor, "k dx"], target: Float[Tensor, "k dy"]) -> Comparison:
    """Compare raw anchors (k, d_x) and (k, d_y), the encoders' own units, row i meant to be the
    same item.

    Rows at the mean of either side have no direction, and are not judged. Costs O(k^2 (d_x + d_y)).
    Raises as `check_vectors`.
    """
    source, target = reduce_to_span(source.double()), reduce_to_span(target.double())
    directions = _judged_directions(source, target)
    if directions is None:
        return Comparison("unclear", None, None, None, [])
    x, y, judged = directions
    similarity = cka(source, target) if len(source) >= 4 else None
    if len(judged) < FEWEST_DISTINCT:
        return Comparison("unclear", None, None, similarity, [])
    z = relatedness(x, y)
    verdict: MismatchVerdict = (
        "related"
        if z >= RELATED_Z
        else "unrelated"
        if len(judged) >= ENOUGH_FOR_VERDICT
        else "unclear"
    )
    shift = _shift(x, y) if verdict == "unrelated" else 0
    sides = _Sides(
        x, y, unit(leave_one_out_predictions(x, y)), unit(leave_one_out_predictions(y, x))
    )
    agreement = _agreement(sides)
    suspects = (
        _suspects(sides, agreement)
        if verdict == "related" and len(judged) >= FEWEST_FOR_SUSPECTS
        else []
    )
    named = [
        each._replace(row=int(judged[each.row]), fits=int(judged[each.fits])) for each in suspects
    ]
    return Comparison(verdict, z, float(agreement.median()), similarity, named, shift)


def judge_relatedness(
    source: Float[Tensor, "k dx"], target: Float[Tensor, "k dy"], *, seed: int = 0
) -> MismatchVerdict:
    """Whether raw anchors (k, d_x) and (k, d_y), the encoders' own units, are the same items in the
    same order: the verdict of `compare_anchors`, without its other numbers.

    Below ENOUGH_FOR_VERDICT rows, anchors are unrelated where z is below SIGNIFICANT_Z, as for
    `evidence`; unclear below FEWEST_JUDGED_ROWS, or where one side is a single vector. At most
    MAX_JUDGED_ROWS rows take part, drawn by seed.
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
    x, y, _ = directions
    least = RELATED_Z if len(x) >= ENOUGH_FOR_VERDICT else SIGNIFICANT_Z
    return "related" if relatedness(x, y) >= least else "unrelated"


def _judged_directions(
    source: Float64[Tensor, "k dx"], target: Float64[Tensor, "k dy"]
) -> tuple[Float64[Tensor, "m dx"], Float64[Tensor, "m dy"], Int64[Tensor, " m"]] | None:
    """The unit anchors of the rows that have a direction on both sides, and these rows; None where
    one side is a single vector.
    """
    try:
        x, y = fit_space(source).unit, fit_space(target).unit
    except DegenerateAnchors:
        return None
    judged = ((x.abs().amax(dim=1) > 0) & (y.abs().amax(dim=1) > 0)).nonzero().flatten()
    return x[judged], y[judged], judged


def leave_one_out_predictions(
    source: Float64[Tensor, "k dx"],
    target: Float64[Tensor, "k dy"],
    *,
    ridge: float = COVERAGE_RIDGE,
) -> Float64[Tensor, "k dy"]:
    """Predictions of each target row by ridge regression on the other rows: p of the module.

    source (k, d_x) and target (k, d_y): unit anchors, ridge > 0. Returns (k, d_y), dimensionless,
    shorter than unit rows.
    """
    weights = torch.cholesky_solve(source.T, ridge_factor(source, ridge=ridge))
    own, predicted = (source * weights.T).sum(dim=1), source @ (weights @ target)
    return (predicted - own[:, None] * target) / (1.0 - own)[:, None]


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

    0 where one side does not vary. Source: Hoeffding 1951, see `evidence.permutation_moments`.
    """
    total, mean, variance = permutation_moments(predicted @ true.T)
    return (total - mean) / variance**0.5 if variance > 0 else 0.0


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


def _shift(source: Float64[Tensor, "k dx"], target: Float64[Tensor, "k dy"]) -> int:
    """1 or -1 if row i is related to row i + that shift, else 0: for a heading read as an item, or
    a lost first row.
    """
    down, up = relatedness(source[:-1], target[1:]), relatedness(source[1:], target[:-1])
    return 0 if max(down, up) < RELATED_Z else 1 if down > up else -1


def _agreement(sides: _Sides) -> Float64[Tensor, " k"]:
    return ((sides.p * sides.y).sum(dim=1) + (sides.q * sides.x).sum(dim=1)) / 2.0


def _suspects(sides: _Sides, agreement: Float64[Tensor, " k"]) -> list[Suspect]:
    """The named rows, the worst agreement first."""
    scores = robust_scores(agreement, least=LEAST_AGREEMENT_SPREAD)
    better = torch.minimum(_fit_better(sides.p, sides.y), _fit_better(sides.q, sides.x)) / (
        len(agreement) - 1
    )
    named: Bool[Tensor, " k"] = ((scores < LOW_SCORE) & (better >= BETTER_SHARE)) | (
        better >= MUCH_BETTER_SHARE
    )
    rows = named.nonzero().flatten()
    rows = rows[agreement[rows].argsort(stable=True)]
    columns = (rows, agreement[rows], scores[rows], better[rows], _best_partner(sides, rows))
    return [Suspect(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _fit_better(
    predicted: Float64[Tensor, "k d"], true: Float64[Tensor, "k d"]
) -> Float64[Tensor, " k"]:
    """The number of rows of `true` with a larger cosine to each prediction than its own row; rows
    that equal its own do not count.
    """
    own = (predicted * true).sum(dim=1, keepdim=True)
    rounding = 1e-12  # so that no copy of the own row counts as better
    counts = [
        (
            predicted[start : start + COSINE_ROWS] @ true.T
            > own[start : start + COSINE_ROWS] + rounding
        ).sum(dim=1)
        for start in range(0, len(true), COSINE_ROWS)
    ]
    return torch.cat(counts).double()


def _best_partner(sides: _Sides, rows: Int64[Tensor, " m"]) -> Int64[Tensor, " m"]:
    """For each of these rows of x, the row j of y with the largest p_i . y_j + q_j . x_i."""
    partners = [
        (sides.p[part] @ sides.y.T + sides.x[part] @ sides.q.T).argmax(dim=1)
        for part in torch.split(rows, COSINE_ROWS)
    ]
    return torch.cat(partners) if partners else rows
