"""How many of the found pairs are right, which seeds are wrong, and whom to ask next: told without knowing the truth.

Five signs (how often they are right: docs/bootstrap-measured.md):
- *agreement*: attempts from other coordinates and seeds' weights find the same pairs. Wrong answers differ from each other.
- *confirmation*: a map learnt from half of the pairs chooses a pair of the other half, both ways (cycle consistency).
- *chance*: what the same steps confirm of pools that have nothing in common. Many items in few directions confirm anything.
- *the seeds left out*: a map learnt without a seed should choose it.
- *orphans* (orphans.py): of items whose partner is taken away, how many are paired all the same? So are those that never had one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor
from torch.nn.functional import normalize

from app.maths.bootstrap.annealing import Directions, Schedule
from app.maths.bootstrap.neighbours import Beat, product_blocks
from app.maths.bootstrap.refinement import graded_map, mutual_partners

#: times that the pairs are halved
CONFIRMATIONS = 3
#: P(right) of a pair that 0, 1, 2, 3 of 3 held-out maps confirm, where the attempts agree. This and the bounds below were chosen
#: on draws of the benchmark's pairs of encoders and on synthetic clouds; how they do: docs/bootstrap-measured.md
RIGHT_BY_VOTES = (0.55, 0.78, 0.90, 0.985)
#: agreement of two attempts that means nothing, and agreement that means all
NO_AGREEMENT, FULL_AGREEMENT = 0.45, 0.85
#: the same of the confirmed share of all mutual pairs: one attempt of many may be right without a second
NO_CONFIRMATION, FULL_CONFIRMATION = 0.58, 0.70
#: more of the smaller pool's items than by chance must be confirmed: excess that means nothing, and excess that means all
NO_EXCESS, FULL_EXCESS = 0.08, 0.25
#: a seed is suspected when its partner is not among this share of the nearest, in either direction
SUSPECT_RANK = 0.05
#: whose coordinates say what is like what, to ask
LABEL_SCHEDULE = Schedule()
#: two-sided 95 %
Z_95 = 1.96


@dataclass(frozen=True, eq=False)
class Votes:
    """pairs      (p, 2) that were judged
    confirmed  (p,) share of the held-out maps that choose the pair both ways, in [0, 1]
    seed_rank  (s,) share of rows before a seed's partner by maps that did not know it: the smaller of both directions, the median
               over repeats; nan where there was no such map
    """

    pairs: Int64[Tensor, "p 2"]
    confirmed: Float32[Tensor, " p"]
    seed_rank: Float32[Tensor, " s"]

    @classmethod
    def counted(
        cls,
        pairs: Int64[Tensor, "p 2"],
        chosen: Sequence[Bool[Tensor, " p"]],
        ranks: Sequence[Float32[Tensor, " s"]],
    ) -> Votes:
        """Those of one halving after another, as `confirm` gives them; on the CPU."""
        return cls(
            pairs.cpu(),
            torch.stack([*chosen]).float().mean(dim=0).cpu(),
            median_ranks(torch.stack([*ranks])).cpu(),
        )


@dataclass(frozen=True)
class Confirmation:
    """share  mean share of the held-out maps that choose a pair, in [0, 1]
    found  pairs that were judged, as a share of the smaller pool
    """

    share: float
    found: float

    @property
    def items(self) -> float:
        """Share of the smaller pool's items."""
        return self.share * self.found


@dataclass(frozen=True)
class BootstrapEstimate:
    """right            estimated share of the accepted pairs that are right, in [0, 1]
    agreement        of two attempts, in [0, 1]
    confirmed        mean share of held-out maps that choose a pair, in [0, 1]
    by_chance        the same of pools that have nothing in common; nan where nothing was believed, so nothing was to be doubted
    seeds_confirmed  share of the seeds that maps without them choose, or rank among the SUSPECT nearest; nan without seeds
    orphans_paired   share of items whose partner was taken away that are paired all the same; nan as `by_chance`
    """

    right: float
    agreement: float
    confirmed: float
    by_chance: float
    seeds_confirmed: float
    orphans_paired: float


def attempt_agreement(one: Int64[Tensor, " n"], other: Int64[Tensor, " n"]) -> float:
    """Share of equal partners among the rows that have one in both; 0 where fewer than a tenth of either have."""
    both = (one >= 0) & (other >= 0)
    if int(both.sum()) < max(1, max(int((one >= 0).sum()), int((other >= 0).sum())) // 10):
        return 0.0
    return float((one[both] == other[both]).double().mean())


def draw_half(pairs: int, repeat: int, seed: int) -> Bool[Tensor, " p"]:
    """(p,) which pairs the first of two maps learns from."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + repeat) % 2**63)
    return torch.randperm(pairs, generator=generator) < pairs // 2


def confirm_pairs(
    x: Float32[Tensor, "n rx"],
    y: Float32[Tensor, "m ry"],
    pairs: Int64[Tensor, "p 2"],
    seeds: Int64[Tensor, "s 2"],
    half: Bool[Tensor, " p"],
    *,
    memory: int,
    beat: Beat,
) -> tuple[Bool[Tensor, " p"], Float32[Tensor, " s"]]:
    """One halving: which pairs the map of the other half chooses (p,), and how far down each seed's partner is (s,) in [0, 1].

    A seed is left out of the map that judges it, whether it is among the pairs or not. A map of no pairs chooses nothing.
    """
    chosen = torch.zeros(len(pairs), dtype=torch.bool, device=pairs.device)
    ranks = torch.full((len(seeds),), torch.nan, device=x.device)
    last = normalize(y)
    for known in (half, ~half):
        if not bool(known.any()):
            continue
        transform = graded_map(x[pairs[known, 0]], y[pairs[known, 1]])
        q = normalize(x @ transform.float())
        found = mutual_partners(q, last, memory=memory, beat=beat)
        judged = ~known
        chosen[judged] = found[pairs[judged, 0]] == pairs[judged, 1]
        outside = ~torch.isin(seeds[:, 0], pairs[known, 0])
        ranks[outside] = _seed_ranks(q, last, seeds[outside], memory=memory, beat=beat)
    return chosen, ranks


def estimate_right(
    votes: Votes, sure: Float32[Tensor, " a"], *, agreed: float, chance: Confirmation | None
) -> BootstrapEstimate:
    """The share that is right of pairs of these confidences (a,): their mean, no more than the seeds allow.

    The upper end of Wilson's interval for the share of seeds that were confirmed bounds it.
    """
    seeds = len(votes.seed_rank)
    hits = int((votes.seed_rank <= SUSPECT_RANK).sum())
    mean = float(sure.double().mean()) if len(sure) else 0.0
    return BootstrapEstimate(
        right=min(mean, wilson_upper(hits, seeds)),
        agreement=agreed,
        confirmed=float(votes.confirmed.double().mean()) if len(votes.confirmed) else 0.0,
        by_chance=math.nan if chance is None else chance.share,
        seeds_confirmed=hits / seeds if seeds else math.nan,
        orphans_paired=math.nan,
    )


def pair_confidence(votes: Votes, worth: float) -> Float32[Tensor, " p"]:
    """P(right) of each pair (p,): CONFIRMED by its votes, times what the answer as a whole is worth."""
    table = votes.confirmed.new_tensor(RIGHT_BY_VOTES)
    return table[(votes.confirmed * (len(RIGHT_BY_VOTES) - 1)).round().long()] * worth


def answer_credibility(
    agreed: float, confirmed: Confirmation, chance: Confirmation | None = None
) -> float:
    """What an answer as a whole is worth, in [0, 1]: by agreement or confirmation, the larger, and by what exceeds chance."""
    alone = max(
        _ramp(agreed, NO_AGREEMENT, FULL_AGREEMENT),
        _ramp(confirmed.share, NO_CONFIRMATION, FULL_CONFIRMATION),
    )
    if chance is None or not alone:
        return alone
    beyond = _ramp(confirmed.items - chance.items, NO_EXCESS, FULL_EXCESS)
    return alone * beyond * _right_share_of_confirmed(confirmed.share, chance.share)


def _right_share_of_confirmed(share: float, by_chance: float) -> float:
    """Of confirmed pairs, how many are right: 1 - w c^2 / s, in [0, 1].

    s is the share that is confirmed and c that by chance. If all right pairs are, then w = (1 - s) / (1 - c) are wrong. Of wrong
    pairs beside right ones about c^2 are confirmed, fewer than of wrong ones among themselves: seen on clouds of few directions.
    """
    if by_chance >= share:
        return 0.0
    return max(0.0, 1 - (1 - share) / (1 - by_chance) * by_chance**2 / share)


def _ramp(value: float, low: float, high: float) -> float:
    """0 up to `low`, 1 from `high` on, straight between."""
    return min(1.0, max(0.0, (value - low) / (high - low)))


def wrong_seeds(votes: Votes, seeds: Int64[Tensor, "s 2"]) -> list[int]:
    """Rows of the seeds (s, 2) that the others contradict.

    Either the partner is far from where maps without the seed put it, or every such map gives one of its two items to another.
    """
    certain = votes.pairs[votes.confirmed == 1]
    taken = torch.zeros(len(seeds), dtype=torch.bool)
    for side in (0, 1):
        other = torch.isin(seeds[:, side], certain[:, side])
        taken |= other & ~torch.isin(_pair_keys(seeds), _pair_keys(certain))
    return ((votes.seed_rank > SUSPECT_RANK) | taken).nonzero()[:, 0].tolist()


def wilson_upper(hits: int, of: int) -> float:
    """Upper end of the 95 % interval of a share (Wilson 1927); 1 where there is nothing to count."""
    if not of:
        return 1.0
    share, z2 = hits / of, Z_95 * Z_95
    centre = share + z2 / (2 * of)
    return min(
        1.0,
        (centre + Z_95 * math.sqrt(share * (1 - share) / of + z2 / (4 * of * of))) / (1 + z2 / of),
    )


def seeds_to_add(seeds: int, *, fewest: int = 5) -> int:
    """How many more to try: as many again, five at least. How often they do: docs/bootstrap-measured.md."""
    return max(fewest, seeds)


def rows_to_label(
    side: Directions, known: Int64[Tensor, " k"], certain: Int64[Tensor, " c"], count: int
) -> Int64[Tensor, " a"]:
    """(a,) rows of a side whose partner would help most, given seeds that are believed and rows whose partner is certain.

    In the coordinates of the first attempt; on the CPU.
    """
    along = side.coordinates(power=LABEL_SCHEDULE.power, dimensions=LABEL_SCHEDULE.dimensions)
    settled = torch.zeros(len(along), dtype=torch.bool, device=along.device)
    settled[certain.to(along.device)] = True
    both = torch.unique(torch.cat([known, certain]).to(along.device))
    return d_optimal_rows(along, both, settled, count).cpu()


def d_optimal_rows(
    along: Float32[Tensor, "n r"],
    known: Int64[Tensor, " k"],
    settled: Bool[Tensor, " n"],
    count: int,
) -> Int64[Tensor, " c"]:
    """(c,) unsettled rows whose partner would help most: greedily, those that known rows and earlier choices reach least.

    along    whitened coordinates, unit rows
    known    rows with a partner beyond doubt
    settled  (n,) rows that are not asked for
    D-optimal design: each step takes the row with the largest leverage v^T (C + I)^-1 v, weighted to 1 where nothing is known.
    Source: Atkinson, Donev and Tobias 2007, chapter 11.
    """
    z = along.double()
    inverse = torch.linalg.inv(
        z[known].T @ z[known] + torch.eye(z.shape[1], dtype=torch.float64, device=z.device)
    )
    left = (z @ inverse).mul(z).sum(dim=1)
    # What is typical of the pool helps more than what stands alone: leverage times the mean of squared cosines to others.
    typical = ((z @ (z.T @ z / len(z))) * z).sum(dim=1)
    open_ = ~settled
    open_[known] = False
    chosen: list[int] = []
    for _ in range(min(count, int(open_.sum()))):
        row = int((left * typical).masked_fill(~open_, -torch.inf).argmax())
        chosen.append(row)
        open_[row] = False
        step = inverse @ z[row]
        scale = 1 + z[row] @ step
        left -= (z @ step).square() / scale
        inverse -= torch.outer(step, step) / scale
    return torch.tensor(chosen, dtype=torch.int64, device=along.device)


def _pair_keys(pairs: Int64[Tensor, "p 2"]) -> Int64[Tensor, " p"]:
    """One number for each pair of rows below 2^31: to compare all with all takes no table."""
    return pairs[:, 0] * 2**32 + pairs[:, 1]


def _seed_ranks(
    q: Float32[Tensor, "n ry"],
    y: Float32[Tensor, "m ry"],
    seeds: Int64[Tensor, "s 2"],
    *,
    memory: int,
    beat: Beat,
) -> Float32[Tensor, " s"]:
    """The smaller of two shares: of y that are nearer to a seed's q than its partner, and of q nearer to its y."""
    before = _nearer_share(q[seeds[:, 0]], y, seeds[:, 1], memory=memory, beat=beat)
    behind = _nearer_share(y[seeds[:, 1]], q, seeds[:, 0], memory=memory, beat=beat)
    return torch.minimum(before, behind)


def _nearer_share(
    left: Float32[Tensor, "s r"],
    right: Float32[Tensor, "m r"],
    own: Int64[Tensor, " s"],
    *,
    memory: int,
    beat: Beat,
) -> Float32[Tensor, " s"]:
    """(s,) share of `right` that is nearer to each row of `left` than its `own` row is."""
    shares = left.new_empty(len(left))
    for piece, cosines in product_blocks(left, right, memory=memory, beat=beat):
        # Its own cosine from the same product: made otherwise, it would be rounded otherwise, and be nearer than itself.
        shares[piece] = (cosines > cosines.gather(1, own[piece, None])).sum(dim=1) / len(right)
    return shares


def median_ranks(ranks: Float32[Tensor, "r s"]) -> Float32[Tensor, " s"]:
    """Over repeats."""
    return ranks.median(dim=0).values.float() if ranks.numel() else ranks.new_zeros(ranks.shape[1])
