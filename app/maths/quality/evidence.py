"""Is a translation any better than chance? Held-out translations against their own items, and against the items of others.

Everything is a statistic of the form S(pi) = sum_i C[i, pi(i)], with C[i, j] what translation i is worth for item j, and
pi = identity the pairing at hand. Were the two encoders' anchors not of the same items, any other pairing would be as likely.
Over all n! pairings of n items (Hoeffding 1951, theorem 2), with row means c_i., column means c_.j and mean c..,

    mean S = n c..,    variance S = 1 / (n - 1) sum_ij d_ij^2,    d_ij = C[i, j] - c_i. - c_.j + c..,

exactly, and S is nearly normal. A translation depends on the items that its fit has seen, and so only the items that were held
out together may change places: S, its mean and its variance are summed over folds. The folds' sums are not independent, though:
what the translation of i owes to j it gives back in that of j, so each pair of items is counted in two folds alike. That doubles
the variance (FOLDED; measured on shuffled real anchors: 1.6 to 2.2 for cosines).
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

#: z of either test above this is no accident: once in 741 normal values. That of the MRR is normal only about: of unrelated pairs
#: it has the heavier tail
SIGNIFICANT_Z = 3.0

#: the variance of a sum over cross-fitted folds, over the sum of their variances; see the module
FOLD_VARIANCE_FACTOR = 2.0

#: so many items are looked at, drawn by seed: their evidence is more than enough
MOST_EVIDENCE_ITEMS = 4096


class ChanceComparison(NamedTuple):
    """found  the mean over the items; chance: its mean over the pairings
    z      how many of their standard deviations found is above it; 0 where all pairings are worth the same
    """

    found: float
    chance: float
    z: float


@dataclass(frozen=True)
class Evidence:
    """verdict  "useless" unless the cosine or the MRR is above chance by CLEARLY standard deviations
    level    of that: about the chance that unrelated anchors pass for related ones, by the normal distribution and Bonferroni:
             .27 %. It is about .4 %, for z of the MRR has a heavier tail
    items    how many were looked at
    cosine   of the translations to their own items
    mrr      of their items' ranks among all n items; with one fold, its chance is the n-th harmonic number over n
    skill    the share of the way from chance to the perfect cosine: (found - chance) / (1 - chance), at least 0
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
    """What held-out translations (`crossfit.Held`) say for a translation.

    translated, native  (k, d): each item's translation by a fit without it, and its own vector, in the target's units
    first               (k,) which items count, at least 2
    fold_of             (k,) which items were held out together; None: all, of one fit. A fold with one item says nothing
    seed                draws the items where they are more than MOST_ITEMS
    Both are centred on the mean of all native vectors. What z says is of the pairing alone: a large one is no proof of a good
    translation, for which see `skill` and the numbers themselves.
    Source: Hoeffding 1951, "A combinatorial central limit theorem".
    """
    mean = native.double().mean(dim=0)
    rows = first.nonzero().flatten()
    if len(rows) > MOST_EVIDENCE_ITEMS:
        rows = rows[
            torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:MOST_EVIDENCE_ITEMS]
        ]
    queries, index = unit(translated.double()[rows] - mean), unit(native.double()[rows] - mean)
    folds = torch.zeros(len(rows), dtype=torch.int64) if fold_of is None else fold_of[rows]
    members = [(folds == fold).nonzero().flatten() for fold in sorted(set(folds.tolist()))]
    cosine = _against_chance([cosine_moments(queries[each], index[each]) for each in members], len(rows))
    mrr = _against_chance([_rank_moments(queries[each], index, each) for each in members], len(rows))
    related = max(cosine.z, mrr.z) > SIGNIFICANT_Z
    level = 2.0 * NormalDist().cdf(-SIGNIFICANT_Z)
    skill = (
        max(0.0, cosine.found - cosine.chance) / (1.0 - cosine.chance)
        if cosine.chance < 1.0
        else 0.0
    )
    return Evidence("related" if related else "useless", level, len(rows), cosine, mrr, skill)


class PermutationMoments(NamedTuple):
    """Of a sum over n items: what it is, and its mean and variance over their n! pairings."""

    found: float
    mean: float
    variance: float


def permutation_moments(worth: Float64[Tensor, "n n"]) -> PermutationMoments:
    """Of the sum of C[i, pi(i)], at pi = identity; (n, n), any units. Source: Hoeffding 1951, theorem 2."""
    size = len(worth)
    found, mean = float(worth.diagonal().sum()), float(worth.mean())
    if size < 2:
        return PermutationMoments(found, found, 0.0)
    apart = worth - worth.mean(dim=1, keepdim=True) - worth.mean(dim=0) + mean
    return PermutationMoments(
        found,
        size * mean,
        _without_rounding(float(apart.square().sum()), float(worth.square().sum())) / (size - 1),
    )


def cosine_moments(queries: Float64[Tensor, "n d"], index: Float64[Tensor, "n d"]) -> PermutationMoments:
    """`moments` of queries @ index^T: d_ij is a product of centred rows, and sum_ij d_ij^2 = tr(Q^T Q Y^T Y).

    That is of (d, d) matrices where these are smaller than (n, n). Rows of any length, their products' units.
    """
    size = len(queries)
    found, mean = float((queries * index).sum()), float(queries.mean(dim=0) @ index.mean(dim=0))
    if size < 2:
        return PermutationMoments(found, found, 0.0)
    q, y = queries - queries.mean(dim=0), index - index.mean(dim=0)
    squares = (q.T @ q) * (y.T @ y) if size > q.shape[1] else (q @ y.T).square()
    most = float(
        queries.square().sum() * index.square().sum()
    )  # of sum_ij C[i, j]^2, by Cauchy and Schwarz
    return PermutationMoments(found, size * mean, _without_rounding(float(squares.sum()), most) / (size - 1))


def _rank_moments(
    queries: Float64[Tensor, "n d"], index: Float64[Tensor, "m d"], members: Int64[Tensor, " n"]
) -> PermutationMoments:
    """`moments` of 1 / the rank of each of the items `members` in the whole index, for each query; a tie counts against it."""
    worth = torch.empty(len(queries), len(queries), dtype=torch.float64)
    for start, block in cosine_blocks(queries, index):
        ordered = block.sort(dim=1).values
        below = torch.searchsorted(ordered, block[:, members].contiguous())
        worth[start : start + len(block)] = 1.0 / (len(index) - below).double()
    return permutation_moments(worth)


def _against_chance(folds: list[PermutationMoments], items: int) -> ChanceComparison:
    found, mean, variance = (sum(column) for column in zip(*folds, strict=True))
    variance *= FOLD_VARIANCE_FACTOR if len(folds) > 1 else 1.0
    return ChanceComparison(
        found / items, mean / items, (found - mean) / variance**0.5 if variance > 0 else 0.0
    )


def _without_rounding(squares: float, of: float) -> float:
    """A sum of squares, 0 where it is rounding of numbers whose squares add up to `of`."""
    return squares if squares > of * (64 * torch.finfo(torch.float64).eps) ** 2 else 0.0
