"""The learning curve of a translator: measured with fewer anchors, and extrapolated to all of them
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
    cut_into_folds,
    draw_anchors,
    limit_omega,
)
from app.maths.quality.metrics import (
    DEFAULT_NEIGHBOURS,
    bootstrap_interval,
    cosine_blocks,
    row_cosines,
    search,
    shared_count,
    unit,
)
from app.maths.translators.methods import Options, fit
from app.maths.translators.translator import apply

Measure = Literal["recall", "mrr", "cosine", "plain_cosine"]

#: The shares of the anchors outside a fold that the fits use.
FIT_SHARES = (0.25, 0.5, 0.75, 1.0)

#: c of each measure: the one of 0, .25, .5, .75 and 1 that best predicted the gain of more anchors,
#: over six kinds of embeddings.
EXPONENTS: Mapping[Measure, float] = {
    "recall": 0.25,
    "mrr": 0.5,
    "cosine": 0.25,
    "plain_cosine": 0.25,
}

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
            values.append(_measure_fits(translations, native[held_rows], neighbours, mean))
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
    translations: list[Float64[Tensor, "h dy"]],
    native: Float64[Tensor, "h dy"],
    neighbours: int,
    mean: Float64[Tensor, " dy"],
) -> Float64[Tensor, "h s m"]:
    """Each measure of each held-out anchor by each fit, in an index of the held-out anchors; all
    centred on the mean.
    """
    index = unit(native)
    native_results = search(cosine_blocks(index, index), neighbours, own=True)
    columns = []
    for vectors in translations:
        queries = unit(vectors)
        results = search(cosine_blocks(queries, index), neighbours, own=True)
        recall = shared_count(results.near, native_results.near).double() / neighbours
        columns.append(
            torch.stack(
                [
                    recall,
                    1.0 / results.ranks.double(),
                    (queries * index).sum(dim=1),
                    row_cosines(vectors + mean, native + mean),
                ],
                dim=1,
            )
        )
    return torch.stack(columns, dim=1)
