"""New cosine thresholds after a change of encoder, from anchors alone: the threshold that as many
pairs reach as reached the old one.

The old score of two items is the cosine of their raw vectors by the source encoder, uncentred, as a
vector database computes it. The new score is the cosine of two raw or translated vectors of the
target (`app.types.Scores`).

- Only pairs of anchors that were held out together count. The fit that translated one of them has
  seen all anchors of other folds and draws the translation nearer to those: on real encoders that
  adds .03 to .06 to the highest translated-native scores. So several rounds cut the anchors into
  folds anew, and each round gives the pairs within its folds.
- Most pairs of random items are far apart, and thresholds concern the few near ones. So pairs are
  sampled by strata of equal width in the old score, at most the same number from each, with
  weights for the number of pairs that a row represents.
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

#: Parts of equal width of the range of old scores, and the rows of each that are kept.
STRATA = 200
ROWS_PER_STRATUM = 1_000


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
    weight  (n,) the number of rows of all pairs that each row represents
    fresh   (n,) whether this is the pair's first row here
    """

    old: Float64[Tensor, " n"]
    new: Float64[Tensor, " n"]
    weight: Float64[Tensor, " n"]
    fresh: Bool[Tensor, " n"]

    @property
    def nbytes(self) -> int:
        return self.old.nbytes + self.new.nbytes + self.weight.nbytes + self.fresh.nbytes


@dataclass(frozen=True)
class NewThreshold:
    """What becomes of an old threshold.

    by_rate      the threshold that as many pairs reach; None below FEWEST_SCORE_PAIRS sampled pairs
                 on either side of the old one
    share        the share of all pairs that reach the old one
    pairs_above  the number of sampled pairs that reach it
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
    share = float(rows.weight[start:].sum() / rows.weight.sum())
    enough = min(above, below) >= FEWEST_SCORE_PAIRS
    return NewThreshold(_rate_matched(rows, score) if enough else None, share, above)


def _rate_matched(rows: ScorePairs, score: float) -> float:
    def from_the_top(scores: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
        """Scores, highest first, and the weight of those above each plus half of their weight."""
        weight = rows.weight[order.flip(0)]
        return scores[order.flip(0)], weight.cumsum(0) - weight / 2

    old, old_above = from_the_top(rows.old, torch.arange(len(rows.old)))
    new, new_above = from_the_top(rows.new, rows.new.argsort(stable=True))
    above = np.interp(-score, (-old).numpy(), old_above.numpy())
    return float(np.interp(above, new_above.numpy(), new.numpy()))


def translate_held_out(
    name: str,
    source: Float[Tensor, "k dx"],
    target: Float[Tensor, "k dy"],
    options: Options,
    *,
    seed: int = 0,
) -> HeldOutItems | None:
    """Distinct anchors with held-out translations, of at most MAX_THRESHOLD_ANCHORS anchors
    chosen by the seed.

    source  (k, d_x) and target (k, d_y): raw anchors, the encoders' own units, row i the same item
    Every fit has 4/5 of those anchors, so translated scores are slightly less certain than a served
    translator's.
    Returns None for fewer than ten distinct anchors, or when a fold leaves only one vector. Raises
    InvalidOption.
    """
    if len(source) > MAX_THRESHOLD_ANCHORS:
        parts = cut_into_folds(source.double(), target.double(), folds=HELD_OUT_FOLDS, seed=seed)
        if parts is None:
            return None
        distinct = parts[0].nonzero().flatten()
        order = torch.randperm(len(distinct), generator=torch.Generator().manual_seed(seed))
        chosen = distinct[order[:MAX_THRESHOLD_ANCHORS]]
        source, target = source[chosen], target[chosen]
    pairs_a_round = len(source) ** 2 / (2 * HELD_OUT_FOLDS)
    rounds = []
    for turn in range(min(MAX_ROUNDS, math.ceil(ENOUGH_PAIRS / pairs_a_round))):
        held_out = hold_out(name, source, target, options, seed=seed + turn)
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


def sample_pairs(items: HeldOutItems, scores: Scores, *, seed: int = 0) -> ScorePairs:
    """Pairs of each fold of each round, at most ROWS_PER_STRATUM rows of each stratum of the old
    score, sorted by it.

    A pair has one row, or one for each direction where one side is translated. A zero vector has
    cosine 0 with all others. Deterministic for equal seeds.
    """
    old, new, first, second = _all_pairs(items, scores)
    stratum = stratum_of(old)
    shuffled = torch.randperm(len(stratum), generator=torch.Generator().manual_seed(seed))
    order = shuffled[stratum[shuffled].argsort(stable=True)]
    counts = torch.bincount(stratum, minlength=STRATA)
    place = torch.arange(len(order)) - (counts.cumsum(0) - counts)[stratum[order]]
    kept = order[place < ROWS_PER_STRATUM]
    kept = kept[old[kept].argsort(stable=True)]
    low, high = torch.minimum(first, second)[kept], torch.maximum(first, second)[kept]
    return ScorePairs(
        old=old[kept],
        new=new[kept],
        weight=(counts.double() / counts.clamp(max=ROWS_PER_STRATUM))[stratum[kept]],
        fresh=_first_of_each(low * MAX_THRESHOLD_ANCHORS + high),
    )


def stratum_of(old: Float64[Tensor, " n"]) -> Int64[Tensor, " n"]:
    """The stratum of each score: one of STRATA parts of equal width of the scores' range."""
    low, high = old.aminmax()
    width = (high - low).clamp_min(torch.finfo(torch.float64).tiny)
    return ((old - low) / width * STRATA).long().clamp(max=STRATA - 1)


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
