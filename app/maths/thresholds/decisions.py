"""The agreement of "the new score reaches t'" with "the old score reaches t", for several choices
of t'.

Measured on pairs of anchors whose items took no part in the choice of t': for each `PairGroup`, its
others choose t'.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from app.maths.thresholds.calibration import (
    Calibration,
    PairGroup,
    expected_score,
    rate_matched_threshold,
)
from app.maths.thresholds.score_pairs import FEWEST_SCORE_PAIRS, ScorePairs


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
