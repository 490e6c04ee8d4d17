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
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from app.maths.geometry.space import draw_rows
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
class ScorePairs:
    """Pairs of items with both their scores, in the order of the old score, on the CPU. A pair has
    a row for each round, and for each direction that differs.

    old, new  (n,) cosines
    pair      (n,) the number of the row's pair
    """

    old: Float64[Tensor, " n"]
    new: Float64[Tensor, " n"]
    pair: Int64[Tensor, " n"]

    @property
    def nbytes(self) -> int:
        return self.old.nbytes + self.new.nbytes + self.pair.nbytes


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
    below, above = (len(torch.unique(each)) for each in rows.pair.tensor_split([start]))
    share = (len(rows.old) - start) / len(rows.old)
    enough = min(above, below) >= FEWEST_SCORE_PAIRS
    if not enough:
        return NewThreshold(None, share, above)
    # Pairs above each score, half of the pair itself included.
    ranks = np.arange(len(rows.old)) + 0.5
    place = np.interp(-score, -rows.old.flip(0).numpy(), ranks)
    new = rows.new.sort(descending=True).values.numpy()
    return NewThreshold(float(np.interp(place, ranks, new)), share, above)


def score_pairs(
    name: str,
    source: Float[Tensor, "k dx"],
    target: Float[Tensor, "k dy"],
    options: Options,
    scores: Scores,
) -> ScorePairs | None:
    """Pairs of each fold of each round, of at most MAX_THRESHOLD_ANCHORS anchors.

    source  (k, d_x) and target (k, d_y): raw anchors, the encoders' own units, row i the same item
    A pair has one row, or one for each direction where one side is translated. A zero vector has
    cosine 0 with all others. Every fit has 4/5 of those anchors, so translated scores are slightly
    less certain than a served translator's.
    Returns None for fewer than ten distinct anchors, or when a fold leaves only one vector. Raises
    InvalidOption.
    """
    if len(source) > MAX_THRESHOLD_ANCHORS:
        parts = cut_into_folds(source.double(), target.double(), folds=HELD_OUT_FOLDS, seed=0)
        if parts is None:
            return None
        distinct = parts[0].nonzero().flatten()
        chosen = distinct[draw_rows(len(distinct), MAX_THRESHOLD_ANCHORS)]
        source, target = source[chosen], target[chosen]
    old_unit, new_unit = unit(source).float(), unit(target).float()
    pairs_a_round = len(source) ** 2 / (2 * HELD_OUT_FOLDS)
    columns: list[tuple[Tensor, ...]] = []
    for turn in range(min(MAX_ROUNDS, math.ceil(ENOUGH_PAIRS / pairs_a_round))):
        held = hold_out(name, source, target, options, seed=turn)
        if held is None:
            return None
        translated = unit(held.translated).float()
        queries = new_unit if scores == Scores.native_native else translated
        index = translated if scores == Scores.translated_translated else new_unit
        for fold in range(HELD_OUT_FOLDS):
            members = ((held.fold_of == fold) & held.first).nonzero().flatten()
            i, j = torch.triu_indices(len(members), len(members), offset=1, device=members.device)
            pair = members[i] * len(source) + members[j]
            if scores == Scores.translated_native:  # the directions differ
                i, j, pair = torch.cat([i, j]), torch.cat([j, i]), pair.repeat(2)
            old = (old_unit[members] @ old_unit[members].T)[i, j].double().clamp(-1, 1)
            new = (queries[members] @ index[members].T)[i, j].double().clamp(-1, 1)
            columns.append((old, new, pair))
    old, new, pair = (torch.cat(column).cpu() for column in zip(*columns, strict=True))
    order = old.argsort(stable=True)
    return ScorePairs(old[order], new[order], pair[order])
