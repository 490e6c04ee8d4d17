"""How a translator improves with more anchors: measured with fewer of them, continued to all of them and a little further.

The anchors are cut into folds as in `app/maths/quality/crossfit.py`. Each held-out part is translated by fits on a quarter, a half, three
quarters and all of the other parts, and searched in one index, the same for the four: the held-out part itself. Anchors that a
fit has seen stay out of it, for they are translated better than any other item: as there are more of them the more a fit gets, an
index with them in it would rise by more than the service does. Then, for each measure,

    m(n) = a - b g(n),    b >= 0,    g(n) = n^-c, or -log n for c = 0,

by least squares weighted by n, through the four means. The c are fixed, for four points tell them apart badly: see EXPONENTS.
What is not known of the form shows in the intervals.
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
from app.maths.quality.crossfit import HELD_OUT_FOLDS, SMALLEST_FOLD, cut_into_folds, limit_omega
from app.maths.quality.intervals import bootstrap_interval
from app.maths.quality.metrics import DEFAULT_NEIGHBOURS, search, shared_count, cosine_blocks, unit
from app.maths.translators.methods import Options, fit
from app.maths.translators.translator import apply

Measure = Literal["recall", "mrr", "cosine"]

#: of the anchors outside a fold, what the fits get
FIT_SHARES = (0.25, 0.5, 0.75, 1.0)

#: c of each measure: of 0, .25, .5, .75 and 1 the one that foretold best what more anchors gave, over six kinds of embeddings
EXPONENTS: Mapping[Measure, float] = {"recall": 0.25, "mrr": 0.5, "cosine": 0.25}

#: curves of these c fit the points about as well: how far apart they come to lie is a part of what is not known
ALTERNATIVE_EXPONENTS = (0.0, 1.0)

#: a curve looks at so many anchors, drawn by seed, and at so many folds as hold MOST_HELD of them out: that bounds its time
MOST_CURVE_ANCHORS = 1024
CURVE_HELD_OUT = 600

#: it says nothing of more anchors than so many times those that it has looked at
EXTRAPOLATION_FACTOR = 2


class IntervalEstimate(NamedTuple):
    """A number, and the ends of its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class MeasureCurve:
    """One measure's curve.

    points    its means over the held-out anchors, by `Curve.sizes`
    exponent  c
    slopes    b >= 0 for that c and each of FORMS, with the interval in which 95 of 100 such slopes over other held-out anchors
              would lie
    last      the last point, with its interval
    """

    points: list[float]
    exponent: float
    slopes: dict[float, IntervalEstimate]
    last: IntervalEstimate


@dataclass(frozen=True)
class LearningCurve:
    """anchors     k, distinct or not, that the served fit has
    looked      how many of them the curve looked at: all, or MOST_ANCHORS
    held        how many distinct ones were held out
    sizes       how many anchors the fits had, rising
    index       how many items were searched, on average; recall and MRR are of an index of that size
    neighbours  how many neighbours recall looks at
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
        """The most anchors that it says anything of."""
        return EXTRAPOLATION_FACTOR * self.looked

    def gain(self, measure: Measure, start: float | int, stop: float | int) -> IntervalEstimate:
        """By how much the measure rises from `start` anchors to `stop`: b (g(start) - g(stop)).

        The interval is from the lowest to the highest end of those of all c. It knows nothing of which anchors the fits have
        happened to get: on five kinds of embeddings it held what 200 anchors more than 300 gave to recall in 83 of 100 cases, to
        MRR and the cosine in 65.
        Raises OutOfRange unless 1 <= start <= stop <= `farthest`.
        """
        if not 1 <= start <= stop <= self.farthest:
            raise OutOfRange(
                f"a curve through {self.looked} anchors says nothing beyond {self.farthest}"
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
        """What the served fit gains over the held-out numbers, which are of fits on 4/5 of the anchors; {} where k is too far.

        To be added to a cosine measured by `cross_fit`. Not to recall and MRR measured in an index of all anchors: those that the
        fits have seen make the one too high by about as much as this, and the other too low by far more.
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
    """The curve of a method, its options resolved, on a pair of raw anchors.

    source  (k, d_x) and target (k, d_y): the encoders' own units, row i the same item; copies share a fold, and are counted once
    Returns None where a fold would hold fewer than SMALLEST distinct anchors, or a quarter of the rest be all one vector.
    Raises InvalidOption. Sources: curves of inverse powers, and their fit by least squares: Cortes et al. 1993; Viering and
    Loog 2023, section 3.
    """
    source, target = source.double(), target.double()
    anchors, generator = len(source), torch.Generator().manual_seed(seed)
    if anchors > MOST_CURVE_ANCHORS:
        rows = torch.randperm(anchors, generator=generator)[:MOST_CURVE_ANCHORS]
        source, target = source[rows], target[rows]
    parted = cut_into_folds(source, target, folds=folds, seed=seed)
    if parted is None or int(parted[0].sum()) < SMALLEST_FOLD * folds:
        return None
    first, fold_of = parted
    distinct = int(first.sum())
    looked_at = min(folds, math.ceil(CURVE_HELD_OUT * folds / distinct))
    neighbours = min(DEFAULT_NEIGHBOURS, (distinct // folds - 1) // 2)
    native = target - target.mean(dim=0)
    values, sizes = [], []
    try:
        for fold in range(looked_at):
            rest = (fold_of != fold).nonzero().flatten()
            rest = rest[torch.randperm(len(rest), generator=generator)]
            held = ((fold_of == fold) & first).nonzero().flatten()
            fits = [rest[: max(1, round(share * len(rest)))] for share in FIT_SHARES]
            made = [
                _translate_held_out(name, source, target, rows, held, options) - target.mean(dim=0)
                for rows in fits
            ]
            values.append(_measure_fits(made, native[held], neighbours))
            sizes.append([float(len(rows)) for rows in fits])
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


def measure_curve(measure: Measure, values: Float64[Tensor, "n s"], sizes: Float64[Tensor, " s"]) -> MeasureCurve:
    """The curve through a measure's values of n held-out anchors by fits on so many anchors.

    With weights w = n / (sum of n) and centred h = g - sum of w g: b = -(sum of w h m) / (sum of w h^2), linear in the values;
    so the slope is the mean of the items' slopes, and its interval that of a mean.
    """
    exponents = (EXPONENTS[measure], *ALTERNATIVE_EXPONENTS)
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
    held: Int64[Tensor, " h"],
    options: Options,
) -> Float64[Tensor, "h dy"]:
    """The held-out anchors by a fit on some others."""
    translator = fit(
        name, fit_space(source[rows]), fit_space(target[rows]), limit_omega(options, len(rows))
    )
    return apply(translator, source[held]).vectors.double()


def _measure_fits(
    made: list[Float64[Tensor, "h dy"]], native: Float64[Tensor, "h dy"], neighbours: int
) -> Float64[Tensor, "h s m"]:
    """Each measure of each held-out anchor by each fit, in an index of the held-out anchors; all centred."""
    index = unit(native)
    wanted = search(cosine_blocks(index, index), neighbours, own=True)
    columns = []
    for vectors in made:
        queries = unit(vectors)
        found = search(cosine_blocks(queries, index), neighbours, own=True)
        recall = shared_count(found.near, wanted.near).double() / neighbours
        columns.append(
            torch.stack([recall, 1.0 / found.ranks.double(), (queries * index).sum(dim=1)], dim=1)
        )
    return torch.stack(columns, dim=1)
