"""The estimate of a translator: the quality to expect in an index of any size, from held-out
anchors, with the gain from fitting to all anchors.

The learning curve of a translator: measured with fewer anchors, and extrapolated to all of them
and slightly beyond.

The anchors are cut into folds as in `app/maths/quality/crossfit.py`. Fits on a quarter, a half,
three quarters and all of the other folds translate each held-out fold, and all four are searched in
the same index: that fold itself. Anchors that a fit has seen stay out of the index, because they
are translated better than any other item. There are more of them in larger fits, so with them in
the index the curve would rise faster than the quality of the service. Then, for each measure,

    m(n) = a - b g(n),    b >= 0,    g(n) = n^-c, or -log n for c = 0,

by least squares weighted by n, through the four means. The c are fixed, because four points hardly
distinguish them: see EXPONENTS. The intervals include the uncertainty of the form.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from app.errors import DegenerateAnchors, OutOfRange
from app.maths.geometry.space import fit_space
from app.maths.quality.crossfit import (
    HELD_OUT_FOLDS,
    SMALLEST_FOLD,
    HeldOutQuality,
    HeldOutTranslations,
    cut_into_folds,
    draw_anchors,
    hold_out,
    limit_omega,
)
from app.maths.quality.index_curves import (
    CURVE_SHARE,
    FEW_NEIGHBOURS_LIFT,
    MRR_PRIOR,
    NEAREST_ERROR,
    NORMAL_95,
    OWN_KIND_ERROR,
    RECALL_PRIOR,
    TAIL_ERROR,
    TAIL_FADE,
    CurvePrior,
    IndexCurves,
    MeasuredCurve,
    Ranking,
    join_own,
    overlap_to_y,
    y_to_overlap,
)
from app.maths.quality.metrics import (
    DEFAULT_NEIGHBOURS,
    bootstrap_interval,
    cosine_blocks,
    search,
    shared_count,
    unit,
)
from app.maths.translators.methods import Options, fit
from app.maths.translators.translator import apply

Measure = Literal["recall", "mrr", "cosine"]

#: The shares of the anchors outside a fold that the fits use.
FIT_SHARES = (0.25, 0.5, 0.75, 1.0)

#: c of each measure: the one of 0, .25, .5, .75 and 1 that best predicted the gain of more anchors,
#: over six kinds of embeddings.
EXPONENTS: Mapping[Measure, float] = {"recall": 0.25, "mrr": 0.5, "cosine": 0.25}

#: Curves of these c fit the points about as well; the interval includes their differences.
ALTERNATIVE_EXPONENTS = (0.0, 1.0)

#: Limits of the time: a curve uses at most this many anchors, drawn by seed, and enough folds to
#: hold CURVE_HELD_OUT of them out.
MAX_CURVE_ANCHORS = 1024
CURVE_HELD_OUT = 600

#: A curve extends to this many times its anchors.
EXTRAPOLATION_FACTOR = 2


class IntervalEstimate(NamedTuple):
    """A number, and the ends of its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class MeasureCurve:
    """One measure's curve.

    points    its means over the held-out anchors, by `LearningCurve.sizes`
    exponent  c
    slopes    b >= 0 for that c and each of ALTERNATIVE_EXPONENTS, with the interval that contains
              95 of 100 such slopes over other held-out anchors
    last      the last point, with its interval
    """

    points: list[float]
    exponent: float
    slopes: dict[float, IntervalEstimate]
    last: IntervalEstimate


@dataclass(frozen=True)
class LearningCurve:
    """The curves of all measures.

    anchors     k of the served fit, copies included
    looked      the number of them that the curve used: all, or MAX_CURVE_ANCHORS
    held        the number of distinct held-out anchors
    sizes       the numbers of anchors of the fits, rising
    index       the mean size of the index; recall and MRR are for an index of that size
    neighbours  neighbours of recall
    """

    anchors: int
    looked: int
    held: int
    sizes: list[float]
    index: float
    neighbours: int
    lines: dict[Measure, MeasureCurve]

    @property
    def farthest(self) -> int:
        """The largest number of anchors that the curve extends to."""
        return EXTRAPOLATION_FACTOR * self.looked

    def gain(self, measure: Measure, start: float | int, stop: float | int) -> IntervalEstimate:
        """The rise of the measure from `start` anchors to `stop`: b (g(start) - g(stop)).

        The interval reaches from the lowest to the highest end over all c. It ignores the choice of
        anchors in the fits: on five kinds of embeddings it contained the gain from 300 to 500
        anchors in 83 of 100 cases for recall, and in 65 for MRR and the cosine.
        Raises OutOfRange unless 1 <= start <= stop <= `farthest`.
        """
        if not 1 <= start <= stop <= self.farthest:
            raise OutOfRange(
                f"The curve of {self.looked} anchors extends from 1 to {self.farthest} anchors; "
                f"got {start} to {stop}."
            )
        line = self.lines[measure]
        gains = {
            c: [end * (decay(start, c) - decay(stop, c)) for end in slope]
            for c, slope in line.slopes.items()
        }
        value, low, high = gains[line.exponent]
        lows, highs = zip(*(ends[1:] for ends in gains.values()), strict=True)
        return IntervalEstimate(value, min(low, *lows), max(high, *highs))

    @property
    def missing(self) -> dict[Measure, IntervalEstimate]:
        """The gain of the served fit over held-out numbers, whose fits use 4/5 of the anchors; {}
        where k exceeds `farthest`.

        Add it to a cosine measured by `cross_fit`. Do not add it to recall and MRR measured in an
        index of all anchors: the anchors that the fits have seen raise recall by about as much as
        this, and lower MRR by far more.
        """
        if self.anchors > self.farthest:
            return {}
        start = self.sizes[-1] / self.looked * self.anchors
        return {measure: self.gain(measure, start, self.anchors) for measure in self.lines}


def decay(anchors: float | int, exponent: float) -> float:
    """g(n) = n^-c; -log n for c = 0."""
    return -math.log(anchors) if exponent == 0.0 else anchors**-exponent


def learning_curve(
    name: str,
    source: Float[Tensor, "k dx"],
    target: Float[Tensor, "k dy"],
    options: Options,
    *,
    folds: int = HELD_OUT_FOLDS,
    seed: int = 0,
) -> LearningCurve | None:
    """The curve of a method with resolved options on a pair of raw anchors.

    source  (k, d_x) and target (k, d_y): the encoders' own units, row i the same item; copies share
            a fold and count once
    Returns None where a fold would contain fewer than SMALLEST_FOLD distinct anchors, or a quarter
    of the rest is all one vector. Raises InvalidOption. Sources: curves of inverse powers, and
    their fit by least squares: Cortes et al. 1993; Viering and Loog 2023, section 3.
    """
    source, target = source.double(), target.double()
    generator = torch.Generator().manual_seed(seed)
    anchors = len(source)
    source, target = draw_anchors(source, target, most=MAX_CURVE_ANCHORS, generator=generator)
    parts = cut_into_folds(source, target, folds=folds, seed=seed)
    if parts is None or int(parts[0].sum()) < SMALLEST_FOLD * folds:
        return None
    first, fold_of = parts
    distinct = int(first.sum())
    looked_at = min(folds, math.ceil(CURVE_HELD_OUT * folds / distinct))
    neighbours = min(DEFAULT_NEIGHBOURS, (distinct // folds - 1) // 2)
    mean = target.mean(dim=0)
    native = target - mean
    values, sizes = [], []
    try:
        for fold in range(looked_at):
            rest = (fold_of != fold).nonzero().flatten()
            rest = rest[torch.randperm(len(rest), generator=generator)]
            held_rows = ((fold_of == fold) & first).nonzero().flatten()
            fits = [rest[: max(1, round(share * len(rest)))] for share in FIT_SHARES]
            translations = [
                _translate_held_out(name, source, target, rows, held_rows, options) - mean
                for rows in fits
            ]
            values.append(_measure_fits(translations, native[held_rows], neighbours))
            sizes.append([len(rows) for rows in fits])
    except DegenerateAnchors:
        return None
    table = torch.cat(values)
    mean_sizes = torch.tensor(sizes, dtype=torch.float64).mean(dim=0)
    return LearningCurve(
        anchors=anchors,
        looked=len(source),
        held=len(table),
        sizes=mean_sizes.tolist(),
        index=len(table) / looked_at,
        neighbours=neighbours,
        lines={
            measure: measure_curve(measure, table[:, :, place], mean_sizes)
            for place, measure in enumerate(get_args(Measure))
        },
    )


def measure_curve(
    measure: Measure, values: Float64[Tensor, "n s"], sizes: Float64[Tensor, " s"]
) -> MeasureCurve:
    """The curve through a measure's values (n, s) of n held-out anchors by fits on `sizes` (s,)
    anchors.

    With weights w = n / (sum of n) and centred h = g - sum of w g: b = -(sum of w h m) / (sum of w
    h^2), linear in the values. So the slope is the mean of the items' slopes, and its interval that
    of a mean.
    """
    exponents = (EXPONENTS[measure], *ALTERNATIVE_EXPONENTS)
    values, sizes = values.cpu(), sizes.cpu()
    columns = []
    for exponent in exponents:
        decays = torch.tensor(
            [decay(size, exponent) for size in sizes.tolist()], dtype=torch.float64
        )
        weights = sizes / sizes.sum()
        centred = decays - weights @ decays
        columns.append(-(values @ (weights * centred)) / (weights @ centred.square()))
    table = torch.stack([*columns, values[:, -1]], dim=1)
    ends = torch.stack([table.mean(dim=0), *bootstrap_interval(table)], dim=1).tolist()
    slopes = {
        c: IntervalEstimate(*(max(0.0, end) for end in each))
        for c, each in zip(exponents, ends, strict=False)
    }
    return MeasureCurve(
        [*values[:, :-1].mean(dim=0).tolist(), ends[-1][0]],
        exponents[0],
        slopes,
        IntervalEstimate(*ends[-1]),
    )


def _translate_held_out(
    name: str,
    source: Float64[Tensor, "k dx"],
    target: Float64[Tensor, "k dy"],
    rows: Int64[Tensor, " m"],
    held_rows: Int64[Tensor, " h"],
    options: Options,
) -> Float64[Tensor, "h dy"]:
    """Translate the held-out anchors by a fit on some others."""
    spaces = fit_space(source[rows]), fit_space(target[rows])
    translator = fit(name, *spaces, limit_omega(options, len(rows)))
    return apply(translator, source[held_rows]).vectors.double()


def _measure_fits(
    translations: list[Float64[Tensor, "h dy"]], native: Float64[Tensor, "h dy"], neighbours: int
) -> Float64[Tensor, "h s m"]:
    """Each measure of each held-out anchor by each fit, in an index of the held-out anchors; all
    centred.
    """
    index = unit(native)
    native_results = search(cosine_blocks(index, index), neighbours, own=True)
    columns = []
    for vectors in translations:
        queries = unit(vectors)
        results = search(cosine_blocks(queries, index), neighbours, own=True)
        recall = shared_count(results.near, native_results.near).double() / neighbours
        columns.append(
            torch.stack([recall, 1.0 / results.ranks.double(), (queries * index).sum(dim=1)], dim=1)
        )
    return torch.stack(columns, dim=1)


#: Sizes of an index that can be estimated for.
SMALLEST_INDEX, LARGEST_INDEX = 10, 10**12

#: The index that an estimate is for without a known store.
DEFAULT_INDEX = 10_000

#: Numbers of anchors and of their partitions: few anchors make small folds, whose overlaps are
#: noisy.
PARTITIONS = ((150, 6), (500, 3))

#: Half of the interval of the cosine of fits to other 100 anchors.
COSINE_ERROR = 0.024

#: The gain of measures without a curve.
NO_GAIN = IntervalEstimate(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Estimate:
    """Expected quality of a served translator.

    anchors     k of the served fit
    index       the number of items in the index, the query's own included
    neighbours  neighbours of recall and the Jaccards
    measured    whether recall is measured in an index of that size; else it is extrapolated
    measures    by their names in `Quality`, each with a 95 % interval; the cosine does not depend
                on the index
    """

    anchors: int
    index: int
    neighbours: int
    measured: bool
    measures: Mapping[str, IntervalEstimate]


@dataclass(frozen=True)
class EstimateBasis:
    """What the estimates of a translator are computed from, for every index.

    gains  of the served fit over held-out fits by the learning curve, in y of recall and MRR
    """

    curves: IndexCurves
    cosine: IntervalEstimate
    gains: Mapping[str, float]


def more_partitions(
    held: HeldOutTranslations,
    name: str,
    source: Float64[Tensor, "k dx"],
    target: Float64[Tensor, "k dy"],
    options: Options,
) -> list[HeldOutTranslations]:
    """`held` and held-out translations by other partitions of the anchors, for few anchors."""
    distinct = int(held.first.sum())
    times = next((times for most, times in PARTITIONS if distinct <= most), 1)
    others = (hold_out(name, source, target, options, seed=seed) for seed in range(1, times))
    return [held, *(each for each in others if each is not None)]


def estimate_basis(
    curves: IndexCurves, held_out: HeldOutQuality, curve: LearningCurve | None
) -> EstimateBasis:
    """What estimates are computed from; without a learning curve, the gain is the prior's."""
    quality = held_out.translated
    gains = {} if curve is None else curve.missing
    cosine = _raise_measure(
        quality.cosine, *quality.intervals["cosine"], gains.get("cosine", NO_GAIN)
    )
    cosine = _widen(cosine, COSINE_ERROR * (100.0 / curves.anchors) ** 0.5)
    if curve is None or not gains:
        return EstimateBasis(curves, cosine, {})
    recall, mrr = (curve.lines[name].points[-1] for name in ("recall", "mrr"))
    share = torch.tensor([min(0.5, curve.neighbours / (curve.index - 1))] * 2, dtype=torch.float64)
    overlaps = torch.tensor([recall, min(recall + gains["recall"].value, 1.0)]).double()
    before, after = overlap_to_y(overlaps, share).tolist()
    odds = max(mrr * (1.0 - mrr), 0.01)
    return EstimateBasis(
        curves, cosine, {"recall": after - before, "mrr": gains["mrr"].value / odds}
    )


def estimate(basis: EstimateBasis, index: int) -> Estimate:
    """The quality to expect in an index of that many items. Raises OutOfRange."""
    if not SMALLEST_INDEX <= index <= LARGEST_INDEX:
        raise OutOfRange(
            f"`index` must be the number of items in your index, {SMALLEST_INDEX} to "
            f"{LARGEST_INDEX}; got {index}.",
            field="index",
        )
    neighbours = min(DEFAULT_NEIGHBOURS, (index - 1) // 2)
    overlaps = {
        "recall": _overlap(basis, "others", index, neighbours),
        "recall_1": _overlap(basis, "others", index, 1),
    }
    found_own = _reciprocal_rank(basis, index / neighbours)
    joined = IntervalEstimate(
        *(
            join_own(o, own, neighbours)
            for o, own in zip(overlaps["recall"], found_own, strict=True)
        )
    )
    measures = {
        "cosine": basis.cosine,
        "mrr": _reciprocal_rank(basis, index),
        **overlaps,
        "jaccard_target": _jaccards(joined, basis.curves.bend["jaccard_target"]),
        "jaccard_own": _jaccards(
            _overlap(basis, "own_kind", index, neighbours), basis.curves.bend["jaccard_own"]
        ),
    }
    measured = _is_measured(
        basis.curves.curves["others"], -math.log10(neighbours / (index - 1)), neighbours
    )
    return Estimate(basis.curves.anchors, index, neighbours, measured, measures)


def _overlap(
    basis: EstimateBasis, ranking: Ranking, index: int, neighbours: int
) -> IntervalEstimate:
    share = neighbours / (index - 1)
    level = -math.log10(share)
    curve = basis.curves.curves[ranking]
    if _is_measured(curve, level, neighbours):
        value, variance = _interpolate(curve, level, neighbours, RECALL_PRIOR)
    else:
        value, variance = _extrapolate(curve, level, neighbours, RECALL_PRIOR, basis.curves.tail)
        variance += NEAREST_ERROR**2 if neighbours == 1 else 0.0
        variance += OWN_KIND_ERROR**2 if ranking == "own_kind" else 0.0
    value, error = _add_gain(basis, "recall", RECALL_PRIOR, value, variance)
    ys = torch.tensor(
        [value, value + NORMAL_95 * error, value - NORMAL_95 * error], dtype=torch.float64
    )
    return IntervalEstimate(*y_to_overlap(ys, share).tolist())


def _reciprocal_rank(basis: EstimateBasis, index: float | int) -> IntervalEstimate:
    curve, level = basis.curves.curves["mrr"], math.log10(index)
    if _is_measured(curve, level, 0):
        value, variance = _interpolate(curve, level, 0, MRR_PRIOR)
    else:
        value, variance = _extrapolate(curve, level, 0, MRR_PRIOR, None)
    value, error = _add_gain(basis, "mrr", MRR_PRIOR, value, variance)
    ys = torch.tensor(
        [value, value - NORMAL_95 * error, value + NORMAL_95 * error], dtype=torch.float64
    )
    return IntervalEstimate(*ys.sigmoid().tolist())


def _add_gain(
    basis: EstimateBasis, name: str, prior: CurvePrior, value: float, variance: float
) -> tuple[float, float]:
    """The y of the served fit, and its standard error."""
    gain = basis.gains.get(name, 0.0)
    value += prior.gain + CURVE_SHARE * (-abs(gain) if name == "recall" else gain)
    error = prior.gain_error**2 * 300.0 / basis.curves.anchors
    return value, (variance + error) ** 0.5


def _jaccards(overlap: IntervalEstimate, bend: float) -> IntervalEstimate:
    """Mean Jaccards of mean overlaps; the bend corrects for the spread of the items."""
    return IntervalEstimate(
        *(min(1.0, max(0.0, o / (2.0 - o) + bend * o * (1.0 - o))) for o in overlap)
    )


def _is_measured(curve: MeasuredCurve, level: float, neighbours: int) -> bool:
    """Whether an index of that level was searched, for at least as many neighbours."""
    return level <= max(_reached(curve, neighbours)) + 1e-9


def _reached(curve: MeasuredCurve, neighbours: int) -> list[float]:
    """The levels with at least as many neighbours; the largest neighbourhood if there is none."""
    fewest = min(neighbours, max(curve.neighbours))
    return [level for level, j in zip(curve.levels, curve.neighbours, strict=True) if j >= fewest]


def _interpolate(
    curve: MeasuredCurve, level: float, neighbours: int, prior: CurvePrior
) -> tuple[float, float]:
    """The y between measured levels, and its variance."""
    levels = _reached(curve, neighbours)
    above = next((i for i, each in enumerate(levels) if each >= level - 1e-9), len(levels) - 1)
    below = max(0, above - 1)
    width = levels[above] - levels[below]
    weight = min(1.0, max(0.0, (level - levels[below]) / width)) if width > 0 else 1.0
    value = (1.0 - weight) * curve.values[below] + weight * curve.values[above]
    # A bound: the two are positively correlated.
    variance = max(curve.covariance[below][below], curve.covariance[above][above])
    return value, prior.inflation * variance


def _extrapolate(
    curve: MeasuredCurve,
    level: float,
    neighbours: int,
    prior: CurvePrior,
    tail: tuple[list[float], list[float]] | None,
) -> tuple[float, float]:
    """The posterior mean of y at a level, and its variance.

    Beyond the measured levels, y falls no lower for recall, and rises no higher for MRR, whose
    `tail` is None: a larger index never helps.
    """
    used = [
        i
        for i, j in enumerate(curve.neighbours)
        if (j >= 2 if tail else i >= len(curve.levels) - 2)
    ] or [len(curve.levels) - 1]
    values = torch.tensor([curve.values[i] for i in used], dtype=torch.float64)
    if tail is not None:
        # At few measured neighbours y is higher than at the wanted number.
        few = torch.tensor([curve.neighbours[i] for i in used], dtype=torch.float64)
        values -= FEW_NEIGHBOURS_LIFT * (1.0 / few - 1.0 / neighbours)
    levels = torch.tensor([curve.levels[i] for i in used], dtype=torch.float64)
    rows = _terms(levels, tail)
    noise = torch.tensor(curve.covariance, dtype=torch.float64)[used][:, used] * prior.inflation
    noise += prior.residual**2 * torch.eye(len(used), dtype=torch.float64)
    deviations = torch.tensor([3.0, *prior.deviations], dtype=torch.float64).square().diag()
    means = torch.tensor([0.0, *prior.means], dtype=torch.float64)
    gain = torch.linalg.solve(rows @ deviations @ rows.T + noise, rows @ deviations).T
    posterior = means + gain @ (values - rows @ means)
    spread = deviations - gain @ rows @ deviations
    grid = torch.linspace(min(float(levels[-1]), level), level, 25, dtype=torch.float64)
    path = _terms(grid, tail) @ posterior
    last = _terms(grid[-1:], tail)[0]
    variance = float(last @ spread @ last) + prior.residual**2
    if tail is None:
        return float(path.min()), variance
    unknown = float(posterior[1]) * TAIL_ERROR * max(0.0, level - tail[0][-1])
    return float(path.max()), variance + unknown**2


def _terms(
    levels: Float64[Tensor, " n"], tail: tuple[list[float], list[float]] | None
) -> Float64[Tensor, "n 3"]:
    """1, and the two terms of the curve of recall or, without a tail, of MRR."""
    beyond = levels - 1.0
    if tail is None:
        return torch.stack([torch.ones_like(levels), beyond, beyond.square()], dim=1)
    start = _tail_at(torch.ones(1, dtype=torch.float64), tail)
    return torch.stack([torch.ones_like(levels), _tail_at(levels, tail) - start, beyond], dim=1)


def _tail_at(
    levels: Float64[Tensor, " n"], tail: tuple[list[float], list[float]]
) -> Float64[Tensor, " n"]:
    """E: linear between the points; beyond them its slope over the last .6 levels fades."""
    known, values = (torch.tensor(each, dtype=torch.float64) for each in tail)
    last = known >= known[-1] - 0.6
    if int(last.sum()) < 2:
        last[-2:] = True
    x, y = known[last] - known[last].mean(), values[last] - values[last].mean()
    slope = float(x @ y / x.square().sum().clamp_min(1e-12))
    place = torch.searchsorted(known, levels.clamp(known[0], known[-1])).clamp(1, len(known) - 1)
    width = (known[place] - known[place - 1]).clamp_min(1e-12)
    weight = (levels.clamp(known[0], known[-1]) - known[place - 1]) / width
    inside = values[place - 1] + weight * (values[place] - values[place - 1])
    beyond = (levels - known[-1]).clamp_min(0.0)
    return inside + slope * TAIL_FADE * (1.0 - (-beyond / TAIL_FADE).exp())


def _widen(estimate: IntervalEstimate, half: float) -> IntervalEstimate:
    """The interval of an estimate with another independent error, `half` on either side."""
    below = math.hypot(estimate.value - estimate.low, half)
    above = math.hypot(estimate.high - estimate.value, half)
    return IntervalEstimate(
        estimate.value, max(-1.0, estimate.value - below), min(1.0, estimate.value + above)
    )


def _raise_measure(
    value: float, low: float, high: float, gain: IntervalEstimate
) -> IntervalEstimate:
    """A measure plus its gain, and the interval of their sum, whose errors are independent.

    A curve ignores the ceiling at 1, so the gain is at most half of the distance to it.
    """
    gain = IntervalEstimate(*(min(each, (1.0 - value) / 2) for each in gain))
    below = ((value - low) ** 2 + (gain.value - gain.low) ** 2) ** 0.5
    above = ((high - value) ** 2 + (gain.high - gain.value) ** 2) ** 0.5
    total = value + gain.value
    return IntervalEstimate(total, max(-1.0, total - below), min(1.0, total + above))
