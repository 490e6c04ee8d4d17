"""Estimates without the truth: the share of right pairs, and wrong seeds.

Five signs (docs/results/bootstrap.md says how often they are right):
- *agreement*: attempts from other coordinates and seed weights find the same pairs. Wrong results
  differ from each other.
- *confirmation*: a map learnt from half of the pairs chooses a pair of the other half, in both
  directions (cycle consistency).
- *chance*: the share that the same steps confirm in pools with nothing in common. Many items in few
  directions confirm anything.
- *the seeds left out*: a map learnt without a seed should choose it.
- *orphans*, items whose partner is removed (orphans.py).
docs/explanation/anchors.md explains it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from app.maths.bootstrap.neighbours import Beat, graded_map, mutual_partners, product_blocks

#: Halvings of the pairs.
CONFIRMATIONS = 3
#: P(right) of a pair that 0, 1, 2, 3 of 3 held-out maps confirm, where the attempts agree. This and
#: the bounds below were chosen on samples of the benchmark's pairs of encoders and on synthetic
#: clouds; their accuracy: docs/results/bootstrap.md.
RIGHT_BY_VOTES = (0.55, 0.78, 0.90, 0.985)
#: Agreement of two attempts up to which they count as unrelated, and from which as equal.
NO_AGREEMENT, FULL_AGREEMENT = 0.45, 0.85
#: The same for the confirmed share of all mutual pairs: one attempt of many may be right without a
#: second.
NO_CONFIRMATION, FULL_CONFIRMATION = 0.58, 0.70
#: The same for the confirmed share of the smaller pool's items, minus the share confirmed by
#: chance.
NO_EXCESS, FULL_EXCESS = 0.08, 0.25
#: A seed is suspect when its partner is not among this share of the nearest, in either direction.
SUSPECT_RANK = 0.05
#: Two items of a pool with this cosine about the pool's mean are twins.
TWIN_COSINE = 0.9
#: Two-sided 95 %.
Z_95 = 1.96


@dataclass(frozen=True, eq=False)
class Votes:
    """The votes of held-out maps on pairs and seeds.

    pairs      (p, 2) judged pairs
    confirmed  (p,) share of the held-out maps that choose the pair in both directions, in [0, 1]
    seed_rank  (s,) share of rows before a seed's partner by maps that did not know it: the smaller
               of both directions, the median over repeats; nan where there was no such map
    """

    pairs: Int64[Tensor, "p 2"]
    confirmed: Float32[Tensor, " p"]
    seed_rank: Float32[Tensor, " s"]

    @property
    def share(self) -> float:
        """The confirmed share of the pairs, in [0, 1]."""
        return float(self.confirmed.double().mean()) if len(self.confirmed) else 0.0

    @property
    def seeds_confirmed(self) -> float:
        """Share of the seeds that rank among the SUSPECT_RANK nearest; nan without seeds."""
        return self._seed_hits / len(self.seed_rank) if len(self.seed_rank) else math.nan

    @property
    def _seed_hits(self) -> int:
        return int((self.seed_rank <= SUSPECT_RANK).sum())

    def right(self, confidences: Float32[Tensor, " a"]) -> float:
        """The estimated share of right pairs: the mean of their confidences (a,), at most the upper
        end of Wilson's interval for the share of confirmed seeds.
        """
        mean = float(confidences.double().mean()) if len(confidences) else 0.0
        return min(mean, wilson_upper(self._seed_hits, len(self.seed_rank)))


class Confirmation(NamedTuple):
    """The confirmed share of a result's pairs, and of the smaller pool's items."""

    share: float
    items: float


@dataclass(frozen=True)
class BootstrapEstimate:
    """The estimated quality of the accepted pairs.

    right            estimated share of the accepted pairs that are right, in [0, 1]
    agreement        of two attempts, in [0, 1]
    confirmed        mean share of held-out maps that choose a pair, in [0, 1]
    by_chance        the same for pools with nothing in common; nan where no pair was believed, so
                     that chance was not measured. Such a run enlarges the rounding of its products,
                     which depends on the device and on the memory for tables: by_chance differs
                     between them by about .01, though all draws are equal
    seeds_confirmed  share of the seeds that maps without them choose, or rank among the
                     SUSPECT_RANK nearest; nan without seeds
    orphans_paired   share of items without a partner that are paired all the same; nan as
                     `by_chance`
    """

    right: float
    agreement: float
    confirmed: float
    by_chance: float
    seeds_confirmed: float
    orphans_paired: float

    @property
    def is_map_believed(self) -> bool:
        """Whether the map is believed, and only items without a partner lower the estimate: more
        seeds would not raise it.
        """
        believed = self.agreement >= FULL_AGREEMENT or self.confirmed >= FULL_CONFIRMATION
        return believed and self.orphans_paired > 0 and not self.seeds_confirmed < self.right


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of a method.

    pairs        (p, 2) rows (i of x, j of y), seeds first; no item twice on a side
    confidence   (p,) probability that each is right
    estimate     of the share that is right
    wrong_seeds  rows of the seeds that the others contradict
    facts        numbers of the last step: loss, agreement
    """

    pairs: Int64[Tensor, "p 2"]
    confidence: Float32[Tensor, " p"]
    estimate: BootstrapEstimate
    wrong_seeds: list[int]
    facts: Mapping[str, float]


def attempt_agreement(one: Int64[Tensor, " n"], other: Int64[Tensor, " n"]) -> float:
    """Share of equal partners among the rows that have one in both; 0 where these are fewer than a
    tenth of either.
    """
    both = (one >= 0) & (other >= 0)
    if int(both.sum()) < max(1, max(int((one >= 0).sum()), int((other >= 0).sum())) // 10):
        return 0.0
    return float((one[both] == other[both]).double().mean())


def draw_half(pairs: int, repeat: int, seed: int) -> Bool[Tensor, " p"]:
    """(p,) the pairs that the first of two maps learns from."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + repeat) % 2**63)
    return torch.randperm(pairs, generator=generator) < pairs // 2


def vote(
    x: Float32[Tensor, "n rx"],
    y: Float32[Tensor, "m ry"],
    pairs: Int64[Tensor, "p 2"],
    seeds: Int64[Tensor, "s 2"],
    *,
    seed: int,
    beat: Beat,
) -> Votes:
    """The votes of CONFIRMATIONS halvings, on the CPU: the map of each half judges the other.

    No map judges a seed that it learnt from; seeds need not be among the pairs. A map of no pairs
    chooses nothing.
    """
    unit_y = normalize(y)
    chosen = torch.zeros(CONFIRMATIONS, len(pairs), device=pairs.device)
    ranks = torch.full((CONFIRMATIONS, len(seeds)), torch.nan, device=x.device)
    for repeat in range(CONFIRMATIONS):
        half = draw_half(len(pairs), repeat, seed).to(pairs.device)
        for known in (half, ~half):
            if not bool(known.any()):
                continue
            transform = graded_map(x[pairs[known, 0]], y[pairs[known, 1]])
            q = normalize(x @ transform.float())
            partners = mutual_partners(q, unit_y, beat=beat)
            chosen[repeat, ~known] = (partners[pairs[~known, 0]] == pairs[~known, 1]).float()
            outside = ~torch.isin(seeds[:, 0], pairs[known, 0])
            ranks[repeat, outside] = _seed_ranks(q, unit_y, seeds[outside], beat=beat)
    return Votes(pairs.cpu(), chosen.mean(dim=0).cpu(), ranks.median(dim=0).values.cpu())


def pair_confidence(votes: Votes, credibility: float) -> Float32[Tensor, " p"]:
    """P(right) of each pair (p,): RIGHT_BY_VOTES of its votes, times the credibility of the whole
    result.
    """
    table = votes.confirmed.new_tensor(RIGHT_BY_VOTES)
    return table[(votes.confirmed * (len(RIGHT_BY_VOTES) - 1)).round().long()] * credibility


def answer_credibility(
    agreed: float, confirmed: Confirmation, chance: Confirmation | None = None
) -> float:
    """The credibility of a whole result, in [0, 1]: that by agreement or by confirmation, the
    larger, times that by the excess over chance.
    """
    alone = max(
        _ramp(agreed, NO_AGREEMENT, FULL_AGREEMENT),
        _ramp(confirmed.share, NO_CONFIRMATION, FULL_CONFIRMATION),
    )
    if chance is None or not alone:
        return alone
    beyond = _ramp(confirmed.items - chance.items, NO_EXCESS, FULL_EXCESS)
    return alone * beyond * _right_share_of_confirmed(confirmed.share, chance.share)


def _right_share_of_confirmed(share: float, by_chance: float) -> float:
    """The share of right pairs among the confirmed ones: 1 - w c^2 / s, in [0, 1].

    s is the confirmed share, and c that by chance. If all right pairs are confirmed, then w = (1 -
    s) / (1 - c) of the pairs are wrong. Among right pairs, about c^2 of the wrong ones are
    confirmed, fewer than among wrong pairs alone, as observed on clouds of few directions.
    """
    if by_chance >= share:
        return 0.0
    return max(0.0, 1 - (1 - share) / (1 - by_chance) * by_chance**2 / share)


def _ramp(value: float, low: float, high: float) -> float:
    """0 up to `low`, 1 from `high` on, linear between."""
    return min(1.0, max(0.0, (value - low) / (high - low)))


def wrong_seeds(
    votes: Votes,
    seeds: Int64[Tensor, "s 2"],
    x: Float32[Tensor, "n rx"],
    y: Float32[Tensor, "m ry"],
) -> list[int]:
    """Rows of the seeds (s, 2) that the other pairs contradict.

    x, y  directions of the pools' items, which votes and seeds name by row
    Either maps without the seed put its partner far away, or every such map assigns one of its two
    items to another. It does not count where this other is a twin of the seed's own (TWIN_COSINE):
    maps cannot distinguish twins, and a seed can.
    """
    certain = votes.pairs[votes.confirmed == 1]
    contradicted = torch.zeros(len(seeds), dtype=torch.bool)
    for side, rivals in ((0, y), (1, x)):
        partner = {int(pair[side]): int(pair[1 - side]) for pair in certain}
        for row, seed in enumerate(seeds.tolist()):
            own, other = seed[1 - side], partner.get(seed[side], seed[1 - side])
            likeness = cosine_similarity(rivals[own], rivals[other], dim=0)
            contradicted[row] |= other != own and bool(likeness < TWIN_COSINE)
    return ((votes.seed_rank > SUSPECT_RANK) | contradicted).nonzero()[:, 0].tolist()


def wilson_upper(hits: int, of: int) -> float:
    """Upper end of the 95 % interval of a share (Wilson 1927); 1 if `of` is 0."""
    if not of:
        return 1.0
    share, z2 = hits / of, Z_95 * Z_95
    centre = share + z2 / (2 * of)
    return min(
        1.0,
        (centre + Z_95 * math.sqrt(share * (1 - share) / of + z2 / (4 * of * of))) / (1 + z2 / of),
    )


def seeds_to_add(seeds: int) -> int:
    """The number of seeds to add next: as many again, but at least five.
    docs/results/bootstrap.md says how often that suffices.
    """
    return max(5, seeds)


def _seed_ranks(
    q: Float32[Tensor, "n ry"],
    y: Float32[Tensor, "m ry"],
    seeds: Int64[Tensor, "s 2"],
    *,
    beat: Beat,
) -> Float32[Tensor, " s"]:
    """The smaller of two shares: of y nearer to a seed's q than its partner, and of q nearer to its
    y.
    """
    before = _nearer_share(q[seeds[:, 0]], y, seeds[:, 1], beat=beat)
    behind = _nearer_share(y[seeds[:, 1]], q, seeds[:, 0], beat=beat)
    return torch.minimum(before, behind)


def _nearer_share(
    left: Float32[Tensor, "s r"],
    right: Float32[Tensor, "m r"],
    own: Int64[Tensor, " s"],
    *,
    beat: Beat,
) -> Float32[Tensor, " s"]:
    """(s,) share of `right` that is nearer to each row of `left` than its `own` row is."""
    shares = left.new_empty(len(left))
    for piece, cosines in product_blocks(left, right, beat=beat):
        # The own cosine comes from the same product; from another one its rounding would differ,
        # and it could be nearer than itself.
        shares[piece] = (cosines > cosines.gather(1, own[piece, None])).sum(dim=1) / len(right)
    return shares
