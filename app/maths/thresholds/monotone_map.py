"""Monotone maps between scores, by isotonic regression on bins of pairs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from app.maths.thresholds.score_pairs import FEWEST_SCORE_PAIRS, ScorePairs


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
