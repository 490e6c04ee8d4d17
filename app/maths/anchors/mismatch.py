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

Harmful anchors: the gain in the translation of the other anchors if one pair were removed.

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
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from app.errors import DegenerateAnchors, InvalidOption
from app.maths.anchors.coverage import COVERAGE_RIDGE, reduce_to_span, ridge_factor
from app.maths.anchors.health import robust_scores
from app.maths.geometry.space import COSINE_ROWS, Space, fit_space
from app.maths.geometry.spectrum import check_ridge, usual_ridge
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


#: Pairs of anchors that are computed: all for up to 2,896 anchors; of more anchors, fewer others
#: judge each.
MAX_INFLUENCE_PAIRS = 2**23

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
    seed    draws the judges where k^2 exceeds MAX_INFLUENCE_PAIRS
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
    if size**2 > MAX_INFLUENCE_PAIRS:
        judges = (
            torch.randperm(size, generator=torch.Generator().manual_seed(seed))[
                : MAX_INFLUENCE_PAIRS // size
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
