"""How recall and MRR fall as the index grows, measured on held-out anchors and
extrapolated to an index of any size.

Recall. The j nearest of n items are the top fraction p = j / n of two rankings: by the native query
and by the translated one. So recall@10 in a large index is the overlap o(p) of these fractions at
small p, and a small index shows o at larger p. Where the density of native scores falls
exponentially above the threshold, with mean excess h, and the translation adds Gaussian noise of
deviation t h, the overlap is 2 Phi(-t / 2) for every p. So

    y(p) = log(-2 Phi^-1(o' / 2)),    o' = (o - p) / (1 - p),

the logarithm of the noise in units of the tail, changes slowly with the level L = -log10 p. Chance
is o' = 0. The level's coefficients are fitted to y at the levels that an index shows,

    y(L) = a + g (E(L) - E(1)) + b (L - 1),    E(L) = -log(h / sqrt(1 - s^2)),

where E describes the tail of the native scores s alone. E needs no translations, so it is measured
on all anchors and a store's sample, at higher levels than y.

MRR. When each other item of an index stays with probability f, an item of rank r has the expected
reciprocal rank (1 - (1 - f)^r) / (r f). The logit of the mean is y, L = log10 of the index's size,
and y(L) = a + b (L - 1) + c (L - 1)^2.

A store that compares by inner product searches translated rows with native queries, so a measure by
products does too: item by item, with the lengths that its anchors have. Then s is c |y| of rows y
by queries of length 1, sqrt(|y|^2 - s^2) is in place of sqrt(1 - s^2), and a longer row may precede
an item's own one, of native vectors too.

The coefficients have normal priors, which were fitted to other data (docs/results/quality.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from app.maths.geometry.space import row_norms
from app.maths.quality.crossfit import HeldOutTranslations
from app.maths.quality.metrics import cosine_blocks, unit

#: Shares of an index whose overlaps are measured: at most a third, because larger overlaps are
#: mostly chance.
LARGEST_SHARE = 1 / 3

#: Numbers of neighbours that are measured, and shares of the index.
FEW_NEIGHBOURS = (1, 2, 3, 4, 5, 6, 8, 10)

#: Points of the tail of the native scores.
TAIL_POINTS = 14

#: Overlaps less chance are clamped to these, where y is finite.
OVERLAP_RANGE = (0.003, 0.997)

#: Means of reciprocal ranks are clamped to this and 1 less this.
LEAST_ODDS = 1e-7

#: Held-out anchors that are searched for at a time: with a sample, 100 MB of cosines.
SEARCHED_ROWS = 512

#: From this ratio of two lengths on, products rank otherwise than cosines.
UNEQUAL_LENGTHS = 1.01

#: What orders the rows of an index.
Comparison = Literal["cosine", "product"]

#: Items of a sample that are searched at most.
MAX_SAMPLE = 20_000

#: From this cosine on, an item of a sample is a copy of an anchor: 1.4 % of its distance from the
#: mean away from it, more than the rounding to float16 or 8 bits.
COPY_COSINE = 0.9999

#: The threshold of few neighbours is noisy, which lowers the overlap: y(j) - y(infinity) is about
#: this / j.
FEW_NEIGHBOURS_LIFT = 0.12

#: The tail's slope fades over this many levels beyond the last one that is measured, and is
#: uncertain by TAIL_ERROR a level.
TAIL_FADE = 0.7
TAIL_ERROR = 0.15


class CurvePrior(NamedTuple):
    """What other data say about a curve.

    means, deviations  of its coefficients after a
    residual           deviation of a point from the curve
    inflation          of the measured variance, for the draws of index and fits
    gain               of the served fit over held-out fits, in y, whose deviation is gain_error for
                       300 anchors
    """

    means: tuple[float, ...]
    deviations: tuple[float, ...]
    residual: float
    inflation: float
    gain: float
    gain_error: float


#: Fitted by maximum likelihood to draws of anchors other than those of benchmarks/estimates.py, and
#: then rounded and widened by hand.
RECALL_PRIOR = CurvePrior((0.4, 0.24), (0.35, 0.08), 0.04, 2.0, -0.022, 0.05)
MRR_PRIOR = CurvePrior((-1.5, 0.07), (0.2, 0.03), 0.025, 1.2, 0.25, 0.13)

#: Quantile of a 95 % interval.
NORMAL_95 = 1.959964


@dataclass(frozen=True)
class MeasuredCurve:
    """A measure at rising levels.

    neighbours  j of each level; 0 for MRR
    levels      L of each, rising
    values      y
    covariance  of the values, from the differences between held-out items
    """

    neighbours: list[int]
    levels: list[float]
    values: list[float]
    covariance: list[list[float]]


@dataclass(frozen=True)
class IndexCurves:
    """Everything that an estimate needs, as numbers that JSON can hold.

    anchors      k of the served fit
    tail         (L, E) of the native scores
    recall, mrr  the curves
    comparison   of the vectors, all of one length by cosine
    """

    anchors: int
    tail: tuple[list[float], list[float]]
    recall: MeasuredCurve
    mrr: MeasuredCurve
    comparison: Comparison = "cosine"


def overlap_to_y(overlap: Float64[Tensor, " n"], share: Float64[Tensor, " n"]) -> Tensor:
    """The y of overlaps (n,) of top fractions (n,): log(-2 Phi^-1(o' / 2))."""
    above = ((overlap - share) / (1.0 - share)).clamp(*OVERLAP_RANGE)
    y: Tensor = (-2.0 * torch.special.ndtri(above / 2.0)).log()
    return y


def y_to_overlap(y: Float64[Tensor, "*shape"], share: float) -> Float64[Tensor, "*shape"]:
    """The overlap of the top fraction `share` for each y, of any shape."""
    overlap: Tensor = share + (1.0 - share) * 2.0 * torch.special.ndtr(-y.exp() / 2.0)
    return overlap


def thinned_reciprocal_rank(
    ranks: Int64[Tensor, "*shape"], kept: float
) -> Float64[Tensor, "*shape"]:
    """E[1 / (1 + B)], B ~ Binomial(r - 1, kept), of ranks r: (1 - (1 - kept)^r) / (r kept)."""
    rank = ranks.double()
    return (1.0 - (1.0 - kept) ** rank) / (rank * kept)


def comparison_of(*sides: Float64[Tensor, "k d"], by_product: bool) -> Comparison:
    """Products, where lengths count and differ on either side of the pairs; else cosines."""
    ends = (row_norms(side).aminmax() for side in sides)
    differ = any(bool(most > UNEQUAL_LENGTHS * least) for least, most in ends)
    return "product" if by_product and differ else "cosine"


def measure_curves(
    held: Sequence[HeldOutTranslations],
    target: Float64[Tensor, "k dy"],
    sample: Tensor | None = None,
    *,
    comparison: Comparison = "cosine",
) -> IndexCurves:
    """The curves of a translator from held-out translations of its anchors, one or more partitions
    of the same anchors; an item's numbers are means over them.

    target  (k, d_y) raw anchors; sample (m, d_y): vectors of the store, in the same units, which
            are searched too
    comparison  by products the sample, which is not translated, does not count
    Copies of anchors in the sample are left out, because they are the anchors' own items: a query
    would find its item twice, and other items would be some that its fit has seen.
    """
    sides, store = (target, *(each.translated for each in held)), None
    by_product = comparison == "product"
    if by_product:
        usual = target.square().sum(dim=1).mean().sqrt()
        native, *made = (side / usual for side in sides)
    else:
        mean = target.mean(dim=0)
        native, *made = (unit(side - mean) for side in sides)
        if sample is not None:
            store = _without_copies(unit(sample[:MAX_SAMPLE] - mean), native)
    overlaps = _Overlaps(held, store)
    ranks = []
    for translations, vectors in zip(held, made, strict=True):
        queries, index = (native, vectors) if by_product else (vectors, native)
        ranks.append(torch.zeros_like(translations.fold_of))
        for part in _parts(translations):
            for start in range(0, len(part), SEARCHED_ROWS):
                rows = part[start : start + SEARCHED_ROWS]
                order = torch.arange(len(rows), device=rows.device)
                places = (order, start + order)
                found = _scores(queries[rows], index[part], store)
                wanted = _scores(native[rows], native[part], store)
                ranks[-1][rows] = (found >= found[places][:, None]).sum(dim=1)
                found[places] = wanted[places] = -torch.inf
                overlaps.add(rows, found, wanted)
    counted = held[0].first
    return IndexCurves(
        len(target),
        _tail(native[counted], store),
        overlaps.curve(counted),
        _mrr_curve(torch.stack(ranks)[:, counted].cpu(), overlaps.size),
        comparison,
    )


def _parts(translations: HeldOutTranslations) -> list[Int64[Tensor, " _"]]:
    folds = torch.unique(translations.fold_of[translations.first])
    return [
        ((translations.fold_of == fold) & translations.first).nonzero().flatten() for fold in folds
    ]


def _without_copies(
    store: Float64[Tensor, "m d"], native: Float64[Tensor, "k d"]
) -> Float64[Tensor, "n d"] | None:
    """The items (n, d) of a store that are no copies of anchors; None if all are. Both are unit."""
    blocks = cosine_blocks(store, native)
    other = torch.cat([block.amax(dim=1) < COPY_COSINE for _, block in blocks])
    return store[other] if bool(other.any()) else None


def _scores(
    queries: Float64[Tensor, "q d"], items: Float64[Tensor, "n d"], store: Tensor | None
) -> Float64[Tensor, "q m"]:
    """Products of queries with items and with the store."""
    own = queries @ items.T
    return own if store is None else torch.cat([own, queries @ store.T], dim=1)


class _Overlaps:
    """Overlaps of the native and the translated ranking, summed over partitions."""

    def __init__(self, held: Sequence[HeldOutTranslations], store: Tensor | None) -> None:
        parts = [rows for each in held for rows in _parts(each)]
        smallest = min(map(len, parts))
        more = 0 if store is None else len(store)
        self.size = round(sum(map(len, parts)) / len(parts)) + more
        #: items that can be found
        self._items = self.size - 1
        most = max(1, int((smallest + more) * LARGEST_SHARE))
        shares = {round(self._items * share) for share in (0.02, 0.05, 0.1, 0.2, 0.3)}
        self.neighbours = sorted(
            j
            for j in {*FEW_NEIGHBOURS, *shares, min(10, (smallest + more - 1) // 2)}
            if 1 <= j <= max(most, min(10, (smallest + more - 1) // 2))
        )
        items = held[0].translated
        self._overlaps = items.new_zeros(len(items), len(self.neighbours))
        self._times = len(held)

    def add(self, rows: Tensor, found: Tensor, wanted: Tensor) -> None:
        deepest = self.neighbours[-1]
        first, second = (each.topk(deepest, dim=1).indices for each in (found, wanted))
        # Each common item counts from the depth on at which both lists contain it.
        place = torch.full_like(found, deepest, dtype=torch.int64)
        depths = torch.arange(deepest, device=place.device)
        place.scatter_(1, first, depths.expand_as(first))
        both = torch.maximum(place.gather(1, second), depths)
        for column, j in enumerate(self.neighbours):
            common = (both < j).sum(dim=1).double()
            self._overlaps[rows, column] += common / j / self._times

    def curve(self, counted: Tensor) -> MeasuredCurve:
        table = self._overlaps[counted].cpu()
        shares = torch.tensor(self.neighbours, dtype=torch.float64) / self._items
        values = overlap_to_y(table.mean(dim=0), shares)
        step = 0.01
        slopes = torch.stack(
            [
                (y_to_overlap(y + step, p) - y_to_overlap(y - step, p)) / (2 * step)
                for y, p in zip(values, shares.tolist(), strict=True)
            ]
        ).clamp_max(-0.02)
        order = list(range(len(shares)))[::-1]  # rising levels
        covariance = torch.cov((table / slopes).T).reshape(len(order), -1) / len(table)
        return MeasuredCurve(
            [self.neighbours[i] for i in order],
            (-shares.log10())[order].tolist(),
            values[order].tolist(),
            covariance[order][:, order].tolist(),
        )


def _mrr_curve(ranks: Int64[Tensor, "r n"], size: int) -> MeasuredCurve:
    """Logits of the mean reciprocal rank in the index, and in thinned ones."""
    kept = [2.0**-power for power in range(max(1, int(math.log2(max(size, 2)))))][::-1]
    table = torch.stack([thinned_reciprocal_rank(ranks, f).mean(dim=0) for f in kept], dim=1)
    items = len(table)
    means = table.mean(dim=0).clamp(LEAST_ODDS, 1.0 - LEAST_ODDS)
    spread = (means * (1.0 - means)).clamp_min(0.3 / items)
    covariance = torch.cov((table / spread).T).reshape(len(kept), -1) / items
    # Few items with a rank above 1 tell little about the odds.
    covariance += torch.diag(0.3 / (items * spread))
    # Half of an item more on each side keeps the odds of perfect ranks finite.
    smoothed = (means * items + 0.5) / (items + 1.0)
    return MeasuredCurve(
        [0] * len(kept),
        [math.log10(size * f) for f in kept],
        smoothed.logit().tolist(),
        covariance.tolist(),
    )


def _tail(native: Float64[Tensor, "k d"], store: Tensor | None) -> tuple[list[float], list[float]]:
    """E at rising levels, from the products of native items with each other and with the store."""
    queries = unit(native[:2048])
    items = native[:2048] if store is None else torch.cat([native[:2048], store])
    squares = items.square().sum(dim=1)
    count = len(items) - 1
    most = max(2, int(count * LARGEST_SHARE))
    wanted = torch.logspace(math.log10(min(3, most)), math.log10(most), TAIL_POINTS)
    numbers = sorted({round(float(j)) for j in wanted}, reverse=True)
    excess, room = torch.zeros(2, len(numbers), dtype=torch.float64)
    for start, block in cosine_blocks(queries, items):
        rows = torch.arange(len(block), device=block.device)
        block[rows, rows + start] = -torch.inf
        top, places = block.topk(most + 1, dim=1)
        sums, lengths = top.cumsum(dim=1), squares[places].cumsum(dim=1)
        for point, j in enumerate(numbers):
            average = sums[:, j - 1] / j
            above = average - (top[:, j - 1] + top[:, j]) / 2.0
            across = (lengths[:, j - 1] / j - average.square()).clamp_min(1e-4).sqrt()
            excess[point] += above.sum().cpu() * (j / (j - 0.5)) / len(queries)
            room[point] += across.sum().cpu() / len(queries)
    levels = [-math.log10(j / count) for j in numbers]
    return levels, (room / excess.clamp_min(1e-12)).log().tolist()
