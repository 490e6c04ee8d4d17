"""How many of the found pairs are right, which seeds are wrong, and whom to ask next: told without knowing the truth.

Three signs, none of which a wrong answer gives (measured: benchmarks/bootstrap.py):
- *agreement*: attempts from other coordinates and seeds' weights find the same pairs. Wrong answers differ from each other.
- *confirmation*: a map learnt from half of the pairs chooses a pair of the other half, both ways (cycle consistency).
- *the seeds left out*: a map learnt without a seed should choose it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor
from torch.nn.functional import normalize

from app.maths.bootstrap.matching import Beat, products
from app.maths.bootstrap.refining import graded_map, match

#: times that the pairs are halved
REPEATS = 3
#: P(right) of a pair that 0, 1, 2, 3 of 3 held-out maps confirm, where the attempts agree; measured, benchmarks/bootstrap.py
CONFIRMED = (0.55, 0.78, 0.90, 0.985)
#: agreement of two attempts that means nothing, and agreement that means all
WORTHLESS, CERTAIN = 0.45, 0.85
#: the same of the confirmed share of all mutual pairs: one attempt of many may be right without a second
UNCONFIRMED, WELL_CONFIRMED = 0.58, 0.70
#: a seed is suspected when its partner is not among this share of the nearest, in either direction
SUSPECT = 0.05
#: two-sided 95 %
Z = 1.96


@dataclass(frozen=True, eq=False)
class Votes:
    """pairs      (p, 2) that were judged
    confirmed  (p,) share of the held-out maps that choose the pair both ways, in [0, 1]
    seed_rank  (s,) share of rows before a seed's partner by maps that did not know it: the smaller of both directions, the median
               over repeats
    """

    pairs: Int64[Tensor, "p 2"]
    confirmed: Float32[Tensor, " p"]
    seed_rank: Float32[Tensor, " s"]


@dataclass(frozen=True)
class Estimate:
    """right            estimated share of the accepted pairs that are right, in [0, 1]
    agreement        of two attempts, in [0, 1]
    confirmed        mean share of held-out maps that choose a pair, in [0, 1]
    seeds_confirmed  share of the seeds that maps without them choose, or rank among the SUSPECT nearest; nan without seeds
    """

    right: float
    agreement: float
    confirmed: float
    seeds_confirmed: float


def agreement(one: Int64[Tensor, " n"], other: Int64[Tensor, " n"]) -> float:
    """Share of equal partners among the rows that have one in both; 0 where fewer than a tenth of either have."""
    both = (one >= 0) & (other >= 0)
    if int(both.sum()) < max(1, max(int((one >= 0).sum()), int((other >= 0).sum())) // 10):
        return 0.0
    return float((one[both] == other[both]).double().mean())


def halves(pairs: int, repeat: int, seed: int) -> Bool[Tensor, " p"]:
    """(p,) which pairs the first of two maps learns from."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + repeat) % 2**63)
    return torch.randperm(pairs, generator=generator) < pairs // 2


def confirm(
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

    A seed is left out of the map that judges it, whether it is among the pairs or not.
    """
    chosen = torch.zeros(len(pairs), dtype=torch.bool, device=pairs.device)
    ranks = torch.zeros(len(seeds), device=x.device)
    last = normalize(y)
    for known in (half, ~half):
        transform = graded_map(x[pairs[known, 0]], y[pairs[known, 1]])
        q = normalize(x @ transform.float())
        found = match(q, last, memory=memory, beat=beat)
        judged = ~known
        chosen[judged] = found.partner[pairs[judged, 0]] == pairs[judged, 1]
        outside = ~torch.isin(seeds[:, 0], pairs[known, 0])
        ranks[outside] = _rank(q, last, seeds[outside], memory=memory, beat=beat)
    return chosen, ranks


def estimate(votes: Votes, accepted: Bool[Tensor, " p"], *, agreed: float) -> Estimate:
    """The share of accepted pairs that is right: the mean of their confidences, no more than the seeds allow.

    The upper end of Wilson's interval for the share of seeds that were confirmed bounds it.
    """
    seeds = len(votes.seed_rank)
    hits = int((votes.seed_rank <= SUSPECT).sum())
    mean = float(confidence(votes, agreed)[accepted].double().mean()) if bool(accepted.any()) else 0.0
    return Estimate(
        right=min(mean, wilson_upper(hits, seeds)),
        agreement=agreed,
        confirmed=float(votes.confirmed.double().mean()) if len(votes.confirmed) else 0.0,
        seeds_confirmed=hits / seeds if seeds else math.nan,
    )


def confidence(votes: Votes, agreed: float) -> Float32[Tensor, " p"]:
    """P(right) of each pair (p,): CONFIRMED by its votes, times how much agreement or confirmation is worth, the larger."""
    table = votes.confirmed.new_tensor(CONFIRMED)
    share = float(votes.confirmed.double().mean()) if len(votes.confirmed) else 0.0
    worth = max(_rise(agreed, WORTHLESS, CERTAIN), _rise(share, UNCONFIRMED, WELL_CONFIRMED))
    return table[(votes.confirmed * (len(CONFIRMED) - 1)).round().long()] * worth


def _rise(value: float, low: float, high: float) -> float:
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
        taken |= other & ~torch.isin(_key(seeds), _key(certain))
    return ((votes.seed_rank > SUSPECT) | taken).nonzero()[:, 0].tolist()


def wilson_upper(hits: int, of: int) -> float:
    """Upper end of the 95 % interval of a share (Wilson 1927); 1 where there is nothing to count."""
    if not of:
        return 1.0
    share, z2 = hits / of, Z * Z
    centre = share + z2 / (2 * of)
    return min(1.0, (centre + Z * math.sqrt(share * (1 - share) / of + z2 / (4 * of * of))) / (1 + z2 / of))


def more_seeds(seeds: int, *, fewest: int = 5) -> int:
    """How many more would probably do: as many again, five at least. How often it does: docs/bootstrap.md."""
    return max(fewest, seeds)


def ask_next(
    along: Float32[Tensor, "n r"], known: Int64[Tensor, " k"], settled: Bool[Tensor, " n"], count: int
) -> Int64[Tensor, " c"]:
    """(c,) unsettled rows whose partner would help most: greedily, those that known rows and earlier choices reach least.

    along    whitened coordinates, unit rows
    known    rows with a partner beyond doubt
    settled  (n,) rows that are not asked for
    D-optimal design: each step takes the row with the largest leverage v^T (C + I)^-1 v, weighted to 1 where nothing is known.
    Source: Atkinson, Donev and Tobias 2007, chapter 11.
    """
    z = along.double()
    inverse = torch.linalg.inv(z[known].T @ z[known] + torch.eye(z.shape[1], dtype=torch.float64, device=z.device))
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


def _key(pairs: Int64[Tensor, "p 2"]) -> Int64[Tensor, " p"]:
    """One number for each pair of rows below 2^31: to compare all with all takes no table."""
    return pairs[:, 0] * 2**32 + pairs[:, 1]


def _rank(
    q: Float32[Tensor, "n ry"], y: Float32[Tensor, "m ry"], seeds: Int64[Tensor, "s 2"], *, memory: int, beat: Beat
) -> Float32[Tensor, " s"]:
    """The smaller of two shares: of y that are nearer to a seed's q than its partner, and of q nearer to its y."""
    before = _before(q[seeds[:, 0]], y, seeds[:, 1], memory=memory, beat=beat)
    behind = _before(y[seeds[:, 1]], q, seeds[:, 0], memory=memory, beat=beat)
    return torch.minimum(before, behind)


def _before(
    left: Float32[Tensor, "s r"], right: Float32[Tensor, "m r"], own: Int64[Tensor, " s"], *, memory: int, beat: Beat
) -> Float32[Tensor, " s"]:
    """(s,) share of `right` that is nearer to each row of `left` than its `own` row is."""
    shares = left.new_empty(len(left))
    for piece, cosines in products(left, right, memory=memory, beat=beat):
        # Its own cosine from the same product: made otherwise, it would be rounded otherwise, and be nearer than itself.
        shares[piece] = (cosines > cosines.gather(1, own[piece, None])).sum(dim=1) / len(right)
    return shares


def medians(ranks: Float32[Tensor, "r s"]) -> Float32[Tensor, " s"]:
    """Over repeats."""
    return ranks.median(dim=0).values.float() if ranks.numel() else ranks.new_zeros(ranks.shape[1])
