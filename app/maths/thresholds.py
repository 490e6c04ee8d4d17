"""New cosine thresholds after a change of encoder, from anchors alone: the threshold that as many
pairs reach as reached the old one.

The old score of two items is the cosine of their raw vectors by the source encoder, uncentred, as a
vector database computes it. The new score is the cosine of two raw or translated vectors of the
target (`app.types.Scores`).

Only pairs of anchors that were held out together count. The fit that translated one of them has
seen all anchors of other folds and draws the translation nearer to those: on real encoders that
adds .03 to .06 to the highest translated-native scores. So several rounds cut the anchors into
folds anew, and each round gives the pairs within its folds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Float64, Int64
from torch import Tensor

from app.maths.quality.crossfit import HELD_OUT_FOLDS, cut_into_folds, hold_out
from app.maths.quality.metrics import unit
from app.maths.translators.methods import Options
from app.types import Scores

#: With fewer pairs above or below a score, nothing is said about it.
FEWEST_SCORE_PAIRS = 10

#: Anchors that are held out at most: five fits on more take long, and their pairs suffice.
MAX_THRESHOLD_ANCHORS = 2_000

#: Rounds are added until there are this many pairs, up to MAX_ROUNDS.
ENOUGH_PAIRS = 100_000
MAX_ROUNDS = 8


@dataclass(frozen=True, eq=False)
class HeldOutItems:
    """Distinct anchors, and their translations by fits that did not see them; all rows of unit
    length, or zero.

    source      (k, d_x) raw anchors
    target      (k, d_y) raw anchors
    translated  (r, k, d_y), for each of r rounds
    fold_of     (r, k), the fold in which each anchor was held out
    """

    source: Float32[Tensor, "k dx"]
    target: Float32[Tensor, "k dy"]
    translated: Float32[Tensor, "r k dy"]
    fold_of: Int64[Tensor, "r k"]

    @property
    def nbytes(self) -> int:
        return (
            self.source.nbytes + self.target.nbytes + self.translated.nbytes + self.fold_of.nbytes
        )


@dataclass(frozen=True, eq=False)
class ScorePairs:
    """Pairs of items with both their scores, in the order of the old score, on the CPU. A pair has
    a row for each direction that differs.

    old     (n,) and new (n,), cosines
    fresh   (n,) whether this is the pair's first row here
    """

    old: Float64[Tensor, " n"]
    new: Float64[Tensor, " n"]
    fresh: Bool[Tensor, " n"]

    @property
    def nbytes(self) -> int:
        return self.old.nbytes + self.new.nbytes + self.fresh.nbytes


@dataclass(frozen=True)
class NewThreshold:
    """What becomes of an old threshold.

    by_rate      the threshold that as many pairs reach; None below FEWEST_SCORE_PAIRS pairs on
                 either side of the old one
    share        the share of all pairs that reach the old one
    pairs_above  the number of pairs that reach it
    """

    by_rate: float | None
    share: float
    pairs_above: int


def find_threshold(rows: ScorePairs, score: float) -> NewThreshold:
    """The new threshold for an old one, in [-1, 1]: Q_new(F_old(score)), both linear between the
    scores.
    """
    start = int(torch.searchsorted(rows.old, score))
    above, below = int(rows.fresh[start:].sum()), int(rows.fresh[:start].sum())
    share = (len(rows.old) - start) / len(rows.old)
    enough = min(above, below) >= FEWEST_SCORE_PAIRS
    if not enough:
        return NewThreshold(None, share, above)
    # Pairs above each score, half of the pair itself included.
    ranks = np.arange(len(rows.old)) + 0.5
    place = np.interp(-score, -rows.old.flip(0).numpy(), ranks)
    new = rows.new.sort(descending=True).values.numpy()
    return NewThreshold(float(np.interp(place, ranks, new)), share, above)


def translate_held_out(
    name: str,
    source: Float[Tensor, "k dx"],
    target: Float[Tensor, "k dy"],
    options: Options,
) -> HeldOutItems | None:
    """Distinct anchors with held-out translations, of at most MAX_THRESHOLD_ANCHORS anchors.

    source  (k, d_x) and target (k, d_y): raw anchors, the encoders' own units, row i the same item
    Every fit has 4/5 of those anchors, so translated scores are slightly less certain than a served
    translator's.
    Returns None for fewer than ten distinct anchors, or when a fold leaves only one vector. Raises
    InvalidOption.
    """
    if len(source) > MAX_THRESHOLD_ANCHORS:
        parts = cut_into_folds(source.double(), target.double(), folds=HELD_OUT_FOLDS, seed=0)
        if parts is None:
            return None
        distinct = parts[0].nonzero().flatten()
        order = torch.randperm(len(distinct), generator=torch.Generator().manual_seed(0))
        chosen = distinct[order[:MAX_THRESHOLD_ANCHORS]]
        source, target = source[chosen], target[chosen]
    pairs_a_round = len(source) ** 2 / (2 * HELD_OUT_FOLDS)
    rounds = []
    for turn in range(min(MAX_ROUNDS, math.ceil(ENOUGH_PAIRS / pairs_a_round))):
        held_out = hold_out(name, source, target, options, seed=turn)
        if held_out is None:
            return None
        rounds.append(held_out)
    first = rounds[0].first
    return HeldOutItems(
        source=unit(source[first]).float(),
        target=unit(target[first]).float(),
        translated=torch.stack([unit(held_out.translated[first]).float() for held_out in rounds]),
        fold_of=torch.stack([held_out.fold_of[first] for held_out in rounds]),
    )


def score_pairs(items: HeldOutItems, scores: Scores) -> ScorePairs:
    """Pairs of each fold of each round, sorted by the old score.

    A pair has one row, or one for each direction where one side is translated. A zero vector has
    cosine 0 with all others.
    """
    old, new, first, second = _all_pairs(items, scores)
    order = old.argsort(stable=True)
    low, high = torch.minimum(first, second)[order], torch.maximum(first, second)[order]
    fresh = _first_of_each(low * MAX_THRESHOLD_ANCHORS + high)
    return ScorePairs(old[order], new[order], fresh)


def _all_pairs(
    items: HeldOutItems, scores: Scores
) -> tuple[Float64[Tensor, " n"], Float64[Tensor, " n"], Int64[Tensor, " n"], Int64[Tensor, " n"]]:
    """The old and the new score and both items of every pair of each fold of each round, once, or
    once in each direction where one side is translated; in no order, on the CPU.
    """
    one_sided = scores == Scores.translated_native
    columns: list[tuple[Tensor, ...]] = []
    for turn, fold_of in enumerate(items.fold_of):
        queries = items.target if scores == Scores.native_native else items.translated[turn]
        index = items.translated[turn] if scores == Scores.translated_translated else items.target
        for fold in range(HELD_OUT_FOLDS):
            members = (fold_of == fold).nonzero().flatten()
            i, j = torch.triu_indices(len(members), len(members), offset=1, device=members.device)
            if one_sided:
                i, j = torch.cat([i, j]), torch.cat([j, i])
            old = (items.source[members] @ items.source[members].T)[i, j].double().clamp(-1, 1)
            new = (queries[members] @ index[members].T)[i, j].double().clamp(-1, 1)
            columns.append((old, new, members[i], members[j]))
    old, new, first, second = (torch.cat(column).cpu() for column in zip(*columns, strict=True))
    return old, new, first, second


def _first_of_each(label: Int64[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """Whether each label occurs nowhere before."""
    ordered, order = label.sort(stable=True)
    fresh = torch.ones_like(label, dtype=torch.bool)
    fresh[order[1:]] = ordered[1:] != ordered[:-1]
    return fresh
