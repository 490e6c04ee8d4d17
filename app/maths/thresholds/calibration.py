"""New cosine thresholds after a change of encoder: a map from old scores to new ones, with
intervals, from anchors alone.

The old score of two items is the cosine of their raw vectors by the source encoder, uncentred, as a
vector database computes it. The new score is the cosine of two raw or translated vectors of the
target (`app.types.Scores`). The map is E[answer | given] as a function that never falls, by
isotonic regression; `given` is the old score and `answer` the new one, or the other way round.

Pairs that share an item are not independent. So the interval is conformal, with residuals from maps
that saw no item of the pair (other folds), and the uncertainty of the map comes from resampling
items, not pairs. See `score_pairs` for the choice of pairs.

Sources: Barlow et al. 1972 (isotonic regression); Oron and Flournoy 2017, "Centered isotonic
regression" (interpolation between the centres of the blocks); Vovk 2015, "Cross-conformal
predictors"; Lei and Wasserman 2014 (conformal intervals made locally).

Monotone maps between scores, by isotonic regression on bins of pairs.

The agreement of "the new score reaches t'" with "the old score reaches t", for several choices
of t'.

Measured on pairs of anchors whose items took no part in the choice of t': for each `PairGroup`, its
others choose t'.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from app.maths.quality.crossfit import HELD_OUT_FOLDS
from app.maths.thresholds.score_pairs import (
    FEWEST_SCORE_PAIRS,
    MAX_CALIBRATION_ANCHORS,
    STRATA,
    CalibrationItems,
    GivenSide,
    ScorePairs,
    same_item_scores,
    sample_pairs,
    stratum_of,
)
from app.types import Scores

#: The reach of near scores, as a part of the range of given scores, and the number of nearest rows
#: behind an interval.
NEAR_RANGE_SHARE = 0.05
MAX_NEAR_ROWS = 1_000

#: Resamples of the items for the interval of the map.
MAP_RESAMPLES = 200


@dataclass(frozen=True, eq=False)
class PairGroup:
    """The pairs within one fold of one round, and the pairs within the round's other folds, which
    share no item with them.

    own     (m,) its rows
    others  (l,) the other folds' rows in the order of the given score, and `by_answer` (l,) in the
            order of the answer
    map     E[answer | given], of the others
    """

    own: Int64[Tensor, " m"]
    others: Int64[Tensor, " l"]
    by_answer: Int64[Tensor, " l"]
    map: MonotoneMap

    @property
    def nbytes(self) -> int:
        return self.own.nbytes + self.others.nbytes + self.by_answer.nbytes


@dataclass(frozen=True, eq=False)
class Calibration:
    """The data behind `expected_score` and `app.maths.thresholds.decisions`.

    by_answer  (n,) the rows in the order of the answer
    map        E[answer | given], of all rows
    residual   (n,) answer - the map of the other rows of its group, for each row
    grid       (g,) given scores at which `resampled` (b, g) has the maps of b resamples of the
               items
    same_item  (m,) sorted new scores of an item with itself; empty where it is 1 by definition
    """

    rows: ScorePairs
    by_answer: Int64[Tensor, " n"]
    map: MonotoneMap
    groups: list[PairGroup]
    residual: Float64[Tensor, " n"]
    grid: Float64[Tensor, " g"]
    resampled: Float64[Tensor, "b g"]
    same_item: Float64[Tensor, " m"]

    @property
    def nbytes(self) -> int:
        rows = self.rows
        columns = (
            rows.given,
            rows.answer,
            rows.weight,
            rows.first,
            rows.second,
            rows.group,
            rows.fresh,
            self.by_answer,
        )
        more = (self.residual, self.resampled, self.same_item)
        return sum(column.nbytes for column in (*columns, *more)) + sum(
            group.nbytes for group in self.groups
        )


@dataclass(frozen=True)
class ExpectedScore:
    """The expectation for one given score; None where there are too few pairs of anchors.

    answer        E[the other score]
    interval      of one pair's other score
    map_interval  of `answer` itself, over other choices of anchors
    by_rate       the threshold that as many pairs reach as reach the given threshold
    share         the share of all pairs that reach the given score
    pairs_above   the number of sampled pairs that reach it
    extrapolated  whether fewer than FEWEST_SCORE_PAIRS pairs are above, below or near it
    """

    answer: float | None
    interval: tuple[float, float] | None
    map_interval: tuple[float, float] | None
    by_rate: float | None
    share: float
    pairs_above: int
    extrapolated: bool


def calibrate(
    items: CalibrationItems, scores: Scores, *, given: GivenSide = "source", seed: int = 0
) -> Calibration:
    """The map from the given score to the other one, and the data for its intervals.

    given  "source": from old scores to new ones; "target": from new to old ones, another regression
           and not the inverse
    Deterministic for equal seeds. An item whose vector is zero has cosine 0 with all others.
    """
    rows = sample_pairs(items, scores, given, seed)
    stratum = stratum_of(rows.given)
    bin_of = join_strata(torch.bincount(stratum[rows.fresh], minlength=STRATA))[stratum]
    bins = int(bin_of.max()) + 1
    ones = torch.ones_like(rows.given)
    grid, _, _ = bin_means(bin_of, bins, ones, rows)
    groups = _pair_groups(rows, bin_of, bins)
    residual = torch.empty_like(rows.answer)
    for group in groups:
        residual[group.own] = rows.answer[group.own] - group.map.at(rows.given[group.own])
    return Calibration(
        rows=rows,
        by_answer=rows.answer.argsort(stable=True),
        map=fit_isotonic(*bin_means(bin_of, bins, ones, rows)),
        groups=groups,
        residual=residual,
        grid=grid,
        resampled=_resampled_maps(rows, bin_of, bins, len(items.source), grid, seed),
        same_item=same_item_scores(items, scores),
    )


def expected_score(calibration: Calibration, score: float, *, level: float) -> ExpectedScore:
    """The expected other score of pairs with this score, and the corresponding other threshold.

    score  in [-1, 1]
    level  in (0, 1), of both intervals
    """
    rows = calibration.rows
    start = int(torch.searchsorted(rows.given, score))
    above, below = int(rows.fresh[start:].sum()), int(rows.fresh[:start].sum())
    near = _near_rows(rows, score)
    enough = above >= FEWEST_SCORE_PAIRS and below >= FEWEST_SCORE_PAIRS
    extrapolated = not enough or int(rows.fresh[near].sum()) < FEWEST_SCORE_PAIRS
    share = float(rows.weight[start:].sum() / rows.weight.sum())
    rate = (
        rate_matched_threshold(rows, score, torch.arange(len(rows.given)), calibration.by_answer)
        if enough
        else None
    )
    if extrapolated:
        return ExpectedScore(None, None, None, rate, share, above, extrapolated=True)
    at = torch.tensor([score], dtype=torch.float64)
    answer = float(calibration.map.at(at))
    low, high = _conformal_interval(calibration.residual[near], _distinct_pairs(rows, near), level)
    return ExpectedScore(
        answer=answer,
        interval=(_clamp_cosine(answer + low), _clamp_cosine(answer + high)),
        map_interval=_map_interval(calibration, score, level),
        by_rate=rate,
        share=share,
        pairs_above=above,
        extrapolated=False,
    )


def covered_range(calibration: Calibration) -> tuple[float, float] | None:
    """The lowest and highest given score with at least FEWEST_SCORE_PAIRS pairs on either side.

    None if there is none.
    """
    scores = calibration.rows.given[calibration.rows.fresh]
    if len(scores) < 2 * FEWEST_SCORE_PAIRS:
        return None
    above_few = scores[scores > scores[FEWEST_SCORE_PAIRS - 1]]
    high = float(scores[-FEWEST_SCORE_PAIRS])
    return (float(above_few[0]), high) if len(above_few) and float(above_few[0]) <= high else None


def rate_matched_threshold(
    rows: ScorePairs, score: float, by_given: Int64[Tensor, " m"], by_answer: Int64[Tensor, " m"]
) -> float:
    """The other score's threshold that the same share of pairs reaches: Q_answer(F_given(score)),
    both linear between the scores.

    by_given, by_answer  the same rows (m,) in the order of either score
    """

    def from_the_top(scores: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
        """Scores, highest first, and the weight of those above each plus half of their weight."""
        weight = rows.weight[order.flip(0)]
        return scores[order.flip(0)], weight.cumsum(0) - weight / 2

    given, given_above = from_the_top(rows.given, by_given)
    answer, answer_above = from_the_top(rows.answer, by_answer)
    above = np.interp(-score, (-given).numpy(), given_above.numpy())
    return float(np.interp(above, answer_above.numpy(), answer.numpy()))


def same_item_interval(calibration: Calibration, level: float) -> tuple[float, float, float] | None:
    """Mean, low and high quantile of the new scores of an item with itself; None where that is 1 by
    definition.
    """
    own = calibration.same_item
    if not len(own):
        return None
    tail = (1 - level) / 2
    return float(own.mean()), float(own.quantile(tail)), float(own.quantile(1 - tail))


def _near_rows(rows: ScorePairs, score: float) -> slice:
    """The MAX_NEAR_ROWS rows whose given score is nearest, none farther than NEAR_RANGE_SHARE of
    the range.
    """
    reach = NEAR_RANGE_SHARE * float(rows.given[-1] - rows.given[0])
    ends = torch.tensor([score - reach, score + reach], dtype=torch.float64)
    low = int(torch.searchsorted(rows.given, ends[0]))
    high = int(torch.searchsorted(rows.given, ends[1], right=True))
    if high - low <= MAX_NEAR_ROWS:
        return slice(low, high)
    distance = (rows.given[low:high] - score).abs()
    farthest = distance.kthvalue(MAX_NEAR_ROWS).values
    inside = (distance <= farthest).nonzero().flatten()
    return slice(low + int(inside[0]), low + int(inside[-1]) + 1)


def _distinct_pairs(rows: ScorePairs, part: slice) -> int:
    """The number of distinct pairs among these rows."""
    low, high = (
        torch.minimum(rows.first, rows.second)[part],
        torch.maximum(rows.first, rows.second)[part],
    )
    return len(torch.unique(low * MAX_CALIBRATION_ANCHORS + high))


def _pair_groups(rows: ScorePairs, bin_of: Int64[Tensor, " n"], bins: int) -> list[PairGroup]:
    groups = []
    for number in range(int(rows.group.max()) + 1):
        own = rows.group == number
        others = (rows.group // HELD_OUT_FOLDS == number // HELD_OUT_FOLDS) & ~own
        place = others.nonzero().flatten()
        groups.append(
            PairGroup(
                own=own.nonzero().flatten(),
                others=place,
                by_answer=place[rows.answer[place].argsort(stable=True)],
                map=fit_isotonic(*bin_means(bin_of, bins, others.double(), rows)),
            )
        )
    return groups


def _resampled_maps(
    rows: ScorePairs,
    bin_of: Int64[Tensor, " n"],
    bins: int,
    items: int,
    grid: Float64[Tensor, " g"],
    seed: int,
) -> Float64[Tensor, "b g"]:
    """Maps of MAP_RESAMPLES draws of the items with replacement, at the grid; the weight of a pair
    is the product of its items' counts.
    """
    generator = torch.Generator().manual_seed(seed)
    maps = []
    for _ in range(MAP_RESAMPLES):
        counts = torch.bincount(
            torch.randint(items, (items,), generator=generator), minlength=items
        ).double()
        weight = counts[rows.first] * counts[rows.second]
        if bool(weight.any()):
            maps.append(fit_isotonic(*bin_means(bin_of, bins, weight, rows)).at(grid))
    return torch.stack(maps)


def _map_interval(calibration: Calibration, score: float, level: float) -> tuple[float, float]:
    """The central `level` of the resampled maps at the score; beyond the grid, at its end."""
    grid = calibration.grid
    place = float(np.interp(score, grid.numpy(), np.arange(len(grid))))
    left, right = math.floor(place), math.ceil(place)
    values = torch.lerp(
        calibration.resampled[:, left], calibration.resampled[:, right], place - left
    )
    return float(values.quantile((1 - level) / 2)), float(values.quantile((1 + level) / 2))


def _conformal_interval(
    residual: Float64[Tensor, " n"], pairs: int, level: float
) -> tuple[float, float]:
    """Both ends of the interval of a new residual, each missed with probability (1 - level) / 2;
    infinite for too few pairs.
    """
    ordered = residual.sort().values
    return -_upper_residual(-ordered.flip(0), pairs, level), _upper_residual(ordered, pairs, level)


def _upper_residual(ordered: Float64[Tensor, " n"], pairs: int, level: float) -> float:
    """The smallest residual that at least (pairs + 1)(1 + level) / 2 of the pairs do not exceed."""
    rank = math.ceil((pairs + 1) * (1 + level) / 2 - 1e-9)
    if rank > pairs:
        return math.inf
    return float(ordered[math.ceil(rank / pairs * len(ordered) - 1e-9) - 1])


def _clamp_cosine(value: float) -> float:
    return max(-1.0, min(1.0, value))


@dataclass(frozen=True, eq=False)
class MonotoneMap:
    """A function that never falls, linear between knots: given scores (m,) and its values there.
    The end pieces extend beyond.
    """

    given: Float64[Tensor, " m"]
    answer: Float64[Tensor, " m"]

    def at(self, scores: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
        """The values at scores (n,), within [-1, 1]."""
        knots = len(self.given)
        if knots == 1:
            return self.answer.expand(len(scores)).clamp(-1, 1)
        right = torch.searchsorted(self.given, scores).clamp(1, knots - 1)
        x0, x1, y0, y1 = (
            self.given[right - 1],
            self.given[right],
            self.answer[right - 1],
            self.answer[right],
        )
        width = (x1 - x0).clamp_min(torch.finfo(torch.float64).tiny)
        return (y0 + (y1 - y0) * (scores - x0) / width).clamp(-1, 1)


def join_strata(pairs: Int64[Tensor, " s"]) -> Int64[Tensor, " s"]:
    """The bin of each stratum (s,), from its number of pairs (s,): strata are joined from the
    highest down until each bin has FEWEST_SCORE_PAIRS.
    """
    labels, bin_, in_bin = [], 0, 0
    for count in reversed(pairs.tolist()):
        if in_bin >= FEWEST_SCORE_PAIRS:
            bin_, in_bin = bin_ + 1, 0
        labels.append(bin_)
        in_bin += count
    if in_bin < FEWEST_SCORE_PAIRS and bin_ > 0:  # the rest at the low end joins its neighbour
        labels = [min(label, bin_ - 1) for label in labels]
    return max(labels) - torch.tensor(labels[::-1])


def bin_means(
    bin_of: Int64[Tensor, " n"], bins: int, weight: Float64[Tensor, " n"], rows: ScorePairs
) -> tuple[Float64[Tensor, " m"], Float64[Tensor, " m"], Float64[Tensor, " m"]]:
    """For each bin with weight: mean of given, mean of answer, weight."""
    sums = torch.stack(
        [torch.bincount(bin_of, weight * column, bins) for column in (rows.given, rows.answer)]
    )
    total = torch.bincount(bin_of, weight, bins)
    nonempty = total > 0
    given, answer = (sums / total)[:, nonempty]
    return given, answer, total[nonempty]


def fit_isotonic(
    given: Float64[Tensor, " m"], answer: Float64[Tensor, " m"], weight: Float64[Tensor, " m"]
) -> MonotoneMap:
    """The non-falling values with the least weighted squared distance from answer (m,), in order of
    given (m,).

    Pooled values become one knot at their mean given score, so that the map has no steps.
    """
    from scipy.optimize import (
        isotonic_regression,
    )  # takes half a second, so only calibrations import it

    fitted = isotonic_regression(answer.numpy(), weights=weight.numpy())
    starts = fitted.blocks[:-1]
    centre = np.add.reduceat((given * weight).numpy(), starts) / np.add.reduceat(
        weight.numpy(), starts
    )
    return MonotoneMap(torch.from_numpy(centre), torch.from_numpy(fitted.x[starts]))


@dataclass(frozen=True)
class Decisions:
    """A threshold of the other score, and its decisions compared with those of the given threshold.

    precision  of the pairs that reach it, the share that reaches the given threshold; None where
               no pair reaches it
    recall     of the pairs that reach the given threshold, the share that reaches it
    f1         their harmonic mean
    """

    threshold: float
    precision: float | None
    recall: float
    f1: float


@dataclass(frozen=True)
class Agreement:
    """Decisions by four thresholds of the other score.

    unchanged  the given threshold
    mapped     the expected other score; None where that is not known
    by_rate    the threshold that as many pairs reach
    best       the threshold with the highest F1
    """

    unchanged: Decisions
    mapped: Decisions | None
    by_rate: Decisions
    best: Decisions


def threshold_agreement(calibration: Calibration, threshold: float) -> Agreement | None:
    """Decisions by thresholds of the other score, compared with those by `threshold` of the given
    score.

    None with fewer than FEWEST_SCORE_PAIRS pairs on either side of it.
    """
    rows = calibration.rows
    reached = rows.given >= threshold
    if min(int(rows.fresh[reached].sum()), int(rows.fresh[~reached].sum())) < FEWEST_SCORE_PAIRS:
        return None
    at = torch.tensor([threshold], dtype=torch.float64)
    all_rows = torch.arange(len(rows.given))
    mapped = expected_score(calibration, threshold, level=0.5).answer

    def decide(chosen: float, choose: Callable[[PairGroup], float]) -> Decisions:
        accepted = torch.zeros_like(reached)
        for group in calibration.groups:
            accepted[group.own] = rows.answer[group.own] >= choose(group)
        return _decide(chosen, accepted, reached, rows.weight)

    return Agreement(
        unchanged=decide(threshold, lambda group: threshold),
        mapped=None if mapped is None else decide(mapped, lambda group: float(group.map.at(at))),
        by_rate=decide(
            rate_matched_threshold(rows, threshold, all_rows, calibration.by_answer),
            lambda group: rate_matched_threshold(rows, threshold, group.others, group.by_answer),
        ),
        best=decide(
            best_threshold(rows, reached, calibration.by_answer),
            lambda group: best_threshold(rows, reached, group.by_answer),
        ),
    )


def best_threshold(
    rows: ScorePairs, reached: Bool[Tensor, " n"], by_answer: Int64[Tensor, " m"]
) -> float:
    """The threshold of the answers with the highest F1 for the rows `reached`, among rows (m,) in
    the order of the answer.

    F1 = 2 both / (accepted + reached), over weights; the highest of equal thresholds; halfway
    between two scores.
    """
    order = by_answer.flip(0)
    scores, weight = rows.answer[order], rows.weight[order]
    reached_weight = torch.where(reached[order], weight, 0.0)
    f1 = 2 * reached_weight.cumsum(0) / (weight.cumsum(0) + reached_weight.sum())
    lower = torch.cat([scores[1:], torch.tensor([-1.0], dtype=torch.float64)])
    f1[:-1][scores[:-1] == scores[1:]] = -1.0  # no threshold separates equal scores
    last = int(f1.argmax())
    return float(scores[last] + lower[last]) / 2


def _decide(
    threshold: float,
    accepted: Bool[Tensor, " n"],
    reached: Bool[Tensor, " n"],
    weight: Float64[Tensor, " n"],
) -> Decisions:
    both, of_accepted, of_reached = (
        float(weight[part].sum()) for part in (accepted & reached, accepted, reached)
    )
    return Decisions(
        threshold=threshold,
        precision=both / of_accepted if of_accepted else None,
        recall=both / of_reached,
        f1=2 * both / (of_accepted + of_reached),
    )
