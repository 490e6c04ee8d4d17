"""The estimate of a translator: the quality to expect in an index of any size, from held-out
anchors, with the gain from fitting to all anchors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float64
from torch import Tensor

from app.maths.quality.crossfit import HeldOutTranslations, hold_out
from app.maths.quality.index_curves import (
    FEW_NEIGHBOURS_LIFT,
    MRR_PRIOR,
    NORMAL_95,
    RECALL_PRIOR,
    TAIL_ERROR,
    TAIL_FADE,
    Comparison,
    CurvePrior,
    IndexCurves,
    MeasuredCurve,
    y_to_overlap,
)
from app.maths.quality.metrics import DEFAULT_NEIGHBOURS, IntervalEstimate
from app.maths.translators.methods import Options

#: Sizes of an index that can be estimated for.
SMALLEST_INDEX, LARGEST_INDEX = 10, 10**12

#: The index that an estimate is for without a known store.
DEFAULT_INDEX = 10_000

#: Numbers of anchors and of their partitions: few anchors make small folds, whose overlaps are
#: noisy.
PARTITIONS = ((150, 6), (500, 3))


@dataclass(frozen=True)
class Estimate:
    """Expected quality of a served translator.

    anchors     k of the served fit
    index       the number of items in the index, the query's own included
    neighbours  neighbours of recall
    measured    whether recall is measured in an index of that size; else it is extrapolated
    comparison  what orders the rows of the index
    measures    recall and mrr, each with a 95 % interval, in an index without the anchors
    """

    anchors: int
    index: int
    neighbours: int
    measured: bool
    comparison: Comparison
    measures: Mapping[str, IntervalEstimate]


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


def estimate(curves: IndexCurves, index: int) -> Estimate:
    """The quality to expect in an index of SMALLEST_INDEX to LARGEST_INDEX items."""
    neighbours = min(DEFAULT_NEIGHBOURS, (index - 1) // 2)
    measures = {
        "mrr": _reciprocal_rank(curves, index),
        "recall": _overlap(curves, index, neighbours),
    }
    measured = _is_measured(curves.recall, -math.log10(neighbours / (index - 1)), neighbours)
    return Estimate(curves.anchors, index, neighbours, measured, curves.comparison, measures)


def _overlap(curves: IndexCurves, index: int, neighbours: int) -> IntervalEstimate:
    share = neighbours / (index - 1)
    value, error = _expect(curves, "recall", -math.log10(share), neighbours)
    ys = torch.tensor(
        [value, value + NORMAL_95 * error, value - NORMAL_95 * error], dtype=torch.float64
    )
    return IntervalEstimate(*y_to_overlap(ys, share).tolist())


def _reciprocal_rank(curves: IndexCurves, index: int) -> IntervalEstimate:
    value, error = _expect(curves, "mrr", math.log10(index), 0)
    ys = torch.tensor(
        [value, value - NORMAL_95 * error, value + NORMAL_95 * error], dtype=torch.float64
    )
    return IntervalEstimate(*ys.sigmoid().tolist())


def _expect(
    curves: IndexCurves, name: Literal["recall", "mrr"], level: float, neighbours: int
) -> tuple[float, float]:
    """The y of the served fit at a level, and its standard error."""
    is_recall = name == "recall"
    curve, prior = (curves.recall, RECALL_PRIOR) if is_recall else (curves.mrr, MRR_PRIOR)
    if _is_measured(curve, level, neighbours):
        value, variance = _interpolate(curve, level, neighbours, prior)
    else:
        tail = curves.tail if is_recall else None
        value, variance = _extrapolate(curve, level, neighbours, prior, tail)
    return value + prior.gain, (variance + prior.gain_error**2 * 300.0 / curves.anchors) ** 0.5


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
