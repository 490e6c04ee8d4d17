"""Whether a translation is better than chance: held-out translations compared with their own items,
and with the items of others.

Every statistic has the form S(pi) = sum_i C[i, pi(i)], where C[i, j] is the score of translation i
for item j, and pi = identity the given pairing. If the anchors of the two encoders were different
items, every other pairing would be as likely. Over all n! pairings of n items (Hoeffding 1951,
theorem 2), with row means c_i., column means c_.j and mean c..,

    mean S = n c..,  variance S = 1 / (n - 1) sum_ij d_ij^2,  d_ij = C[i, j] - c_i. - c_.j + c..,

exactly, and S is nearly normal. A translation depends on the items that its fit has seen, so only
items that were held out together may be exchanged: S, its mean and its variance are summed over
folds. The sums of the folds are not independent, though: item j contributes to the
translation of i as item i does to that of j, so two folds count each pair of items alike. That
doubles the variance (FOLD_VARIANCE_FACTOR; measured on shuffled real anchors: 1.6 to 2.2 for
cosines).
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from app.maths.quality.metrics import cosine_blocks, unit

EvidenceVerdict = Literal["related", "useless"]

#: A z of either test above this is significant: 1 in 741 normal values exceeds it. The z of the MRR
#: is only approximately normal; for unrelated pairs it has a heavier tail.
SIGNIFICANT_Z = 3.0

#: The variance of a sum over cross-fitted folds, divided by the sum of their variances; see the
#: module.
FOLD_VARIANCE_FACTOR = 2.0

#: The statistics use at most this many items, drawn by seed, which is ample.
MAX_EVIDENCE_ITEMS = 4096


class ChanceComparison(NamedTuple):
    """A mean compared with chance.

    found   the mean over the items
    chance  its mean over the pairings
    z       (found - chance) in standard deviations over the pairings; 0 where all pairings have the
            same score
    """

    found: float
    chance: float
    z: float


@dataclass(frozen=True)
class Evidence:
    """The evidence for a translation.

    verdict  "useless" unless the cosine or the MRR exceeds chance by SIGNIFICANT_Z standard
             deviations
    level    the significance level: the probability that unrelated anchors are called related, by
             the normal distribution and Bonferroni: .27 %. In fact it is about .4 %, because z of
             the MRR has a heavier tail
    items    the number of items in the statistics
    cosine   of the translations to their own items
    mrr      of their items' ranks among all n items; with one fold, its chance is the n-th harmonic
             number over n
    skill    the share of the way from chance to the perfect cosine: (found - chance) / (1 -
             chance), at least 0
    """

    verdict: EvidenceVerdict
    level: float
    items: int
    cosine: ChanceComparison
    mrr: ChanceComparison
    skill: float


def evidence(
    translated: Float[Tensor, "k d"],
    native: Float[Tensor, "k d"],
    first: Bool[Tensor, " k"],
    fold_of: Int64[Tensor, " k"] | None = None,
    *,
    seed: int = 0,
) -> Evidence:
    """The evidence of held-out translations (`crossfit.HeldOutTranslations`).

    translated, native  (k, d): each item's translation by a fit without it, and its own vector, in
                        the target's units
    first               (k,) which items count, at least 2
    fold_of             (k,) which items were held out together; None: all, by one fit. A fold with
                        one item adds nothing
    seed                draws the items where there are more than MAX_EVIDENCE_ITEMS
    Both are centred on the mean of the native vectors. z concerns the pairing
    alone: a large z does not prove a good translation; see `skill` and the quality for that.
    Source: Hoeffding 1951, "A combinatorial central limit theorem".
    """
    mean = native.double().mean(dim=0)
    rows = first.nonzero().flatten()
    if len(rows) > MAX_EVIDENCE_ITEMS:
        rows = rows[
            torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[
                :MAX_EVIDENCE_ITEMS
            ]
        ]
    queries, index = unit(translated.double()[rows] - mean), unit(native.double()[rows] - mean)
    folds = torch.zeros_like(rows) if fold_of is None else fold_of[rows]
    members = [(folds == fold).nonzero().flatten() for fold in sorted(set(folds.tolist()))]
    cosine = _against_chance(
        [permutation_moments(queries[each] @ index[each].T) for each in members], len(rows)
    )
    mrr = _against_chance(
        [_rank_moments(queries[each], index, each) for each in members], len(rows)
    )
    related = max(cosine.z, mrr.z) > SIGNIFICANT_Z
    level = 2.0 * NormalDist().cdf(-SIGNIFICANT_Z)
    skill = (
        max(0.0, cosine.found - cosine.chance) / (1.0 - cosine.chance)
        if cosine.chance < 1.0
        else 0.0
    )
    return Evidence("related" if related else "useless", level, len(rows), cosine, mrr, skill)


class PermutationMoments(NamedTuple):
    """A sum over n items: its value, and its mean and variance over their n! pairings."""

    found: float
    mean: float
    variance: float


def permutation_moments(scores: Float64[Tensor, "n n"]) -> PermutationMoments:
    """Moments of the sum of C[i, pi(i)], at pi = identity, for `scores` C (n, n), any unit. Source:
    Hoeffding 1951, theorem 2.
    """
    size = len(scores)
    observed, mean = float(scores.diagonal().sum()), float(scores.mean())
    if size < 2:
        return PermutationMoments(observed, observed, 0.0)
    residual = scores - scores.mean(dim=1, keepdim=True) - scores.mean(dim=0) + mean
    return PermutationMoments(
        observed,
        size * mean,
        _without_rounding(float(residual.square().sum()), float(scores.square().sum()))
        / (size - 1),
    )


def _rank_moments(
    queries: Float64[Tensor, "n d"], index: Float64[Tensor, "m d"], members: Int64[Tensor, " n"]
) -> PermutationMoments:
    """`permutation_moments` of 1 / the rank, in the whole index, of each of the items `members` for
    each query; a tie counts against it.
    """
    scores = queries.new_empty(len(queries), len(queries))
    for start, block in cosine_blocks(queries, index):
        ordered = block.sort(dim=1).values
        below = torch.searchsorted(ordered, block[:, members].contiguous())
        scores[start : start + len(block)] = 1.0 / (len(index) - below).double()
    return permutation_moments(scores)


def _against_chance(folds: list[PermutationMoments], items: int) -> ChanceComparison:
    observed, mean, variance = (sum(column) for column in zip(*folds, strict=True))
    variance *= FOLD_VARIANCE_FACTOR if len(folds) > 1 else 1.0
    return ChanceComparison(
        observed / items, mean / items, (observed - mean) / variance**0.5 if variance > 0 else 0.0
    )


def _without_rounding(squares: float, of: float) -> float:
    """A sum of squares, or 0 where it is the rounding of numbers whose squares add up to `of`."""
    return squares if squares > of * (64 * torch.finfo(torch.float64).eps) ** 2 else 0.0
