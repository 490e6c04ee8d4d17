"""Estimates without the truth: the share of right pairs, and wrong seeds.

Five signs (docs/results/bootstrap.md says how often they are right):
- *agreement*: attempts from other coordinates and seed weights find the same pairs. Wrong results
  differ from each other.
- *confirmation*: a map learnt from half of the pairs chooses a pair of the other half, in both
  directions (cycle consistency).
- *chance*: the share that the same steps confirm in pools with nothing in common. Many items in few
  directions confirm anything.
- *the seeds left out*: a map learnt without a seed should choose it.
- *orphans*, items whose partner is removed: the share of them that is paired all the same shows how
  readily items that never had a partner are paired, and so how many given pairs are wrong.

An eighth of the pairs lose their item of y, and an eighth their item of x. The rest learns, matches
and confirms as all pairs did. The result is the share of the smaller pool's orphans that is paired.
If it leaves open whether most pairs are right, more trials follow, and the estimate takes the worse
end of their interval. docs/explanation/anchors.md explains it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from app.maths.bootstrap.neighbours import (
    Beat,
    graded_map,
    learn_and_match,
    mutual_partners,
    partner_pairs,
    product_blocks,
)

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

    @classmethod
    def counted(
        cls,
        pairs: Int64[Tensor, "p 2"],
        chosen: Sequence[Bool[Tensor, " p"]],
        ranks: Sequence[Float32[Tensor, " s"]],
    ) -> Votes:
        """The votes of several halvings, as `confirm_pairs` returns them; on the CPU."""
        return cls(
            pairs.cpu(),
            torch.stack([*chosen]).float().mean(dim=0).cpu(),
            median_ranks(torch.stack([*ranks])).cpu(),
        )


@dataclass(frozen=True)
class Confirmation:
    """The confirmed share of a result.

    share  mean share of the held-out maps that choose a pair, in [0, 1]
    found  judged pairs, as a share of the smaller pool
    """

    share: float
    found: float

    @property
    def items(self) -> float:
        """The confirmed share of the smaller pool's items."""
        return self.share * self.found


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


def confirm_pairs(
    x: Float32[Tensor, "n rx"],
    y: Float32[Tensor, "m ry"],
    pairs: Int64[Tensor, "p 2"],
    seeds: Int64[Tensor, "s 2"],
    half: Bool[Tensor, " p"],
    *,
    beat: Beat,
) -> tuple[Bool[Tensor, " p"], Float32[Tensor, " s"]]:
    """One halving: which pairs the map of the other half chooses (p,), and the rank of each seed's
    partner (s,) in [0, 1].

    No map judges a seed that it learnt from; seeds need not be among the pairs. A map of no pairs
    chooses nothing.
    """
    chosen = torch.zeros(len(pairs), dtype=torch.bool, device=pairs.device)
    ranks = torch.full((len(seeds),), torch.nan, device=x.device)
    unit_y = normalize(y)
    for known in (half, ~half):
        if not bool(known.any()):
            continue
        transform = graded_map(x[pairs[known, 0]], y[pairs[known, 1]])
        q = normalize(x @ transform.float())
        partners = mutual_partners(q, unit_y, beat=beat)
        judged = ~known
        chosen[judged] = partners[pairs[judged, 0]] == pairs[judged, 1]
        outside = ~torch.isin(seeds[:, 0], pairs[known, 0])
        ranks[outside] = _seed_ranks(q, unit_y, seeds[outside], beat=beat)
    return chosen, ranks


def estimate_right(
    votes: Votes, confidences: Float32[Tensor, " a"], *, agreed: float, chance: Confirmation | None
) -> BootstrapEstimate:
    """The estimated share of right pairs: the mean of their confidences (a,), limited by the seeds.

    The limit is the upper end of Wilson's interval for the share of confirmed seeds.
    """
    seeds = len(votes.seed_rank)
    hits = int((votes.seed_rank <= SUSPECT_RANK).sum())
    mean = float(confidences.double().mean()) if len(confidences) else 0.0
    return BootstrapEstimate(
        right=min(mean, wilson_upper(hits, seeds)),
        agreement=agreed,
        confirmed=float(votes.confirmed.double().mean()) if len(votes.confirmed) else 0.0,
        by_chance=math.nan if chance is None else chance.share,
        seeds_confirmed=hits / seeds if seeds else math.nan,
        orphans_paired=math.nan,
    )


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
    x: Float32[Tensor, "n rx"] | None = None,
    y: Float32[Tensor, "m ry"] | None = None,
) -> list[int]:
    """Rows of the seeds (s, 2) that the other pairs contradict.

    x, y  directions of the pools' items, which votes and seeds name by row; None: no item has a
          twin
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
            is_twin = rivals is not None and _cosine(rivals[own], rivals[other]) >= TWIN_COSINE
            contradicted[row] |= other != own and not is_twin
    return ((votes.seed_rank > SUSPECT_RANK) | contradicted).nonzero()[:, 0].tolist()


def _cosine(one: Float32[Tensor, " r"], other: Float32[Tensor, " r"]) -> float:
    return float(cosine_similarity(one, other, dim=0))


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


def seeds_to_add(seeds: int, *, fewest: int = 5) -> int:
    """The number of seeds to add next: as many again, but at least `fewest`.
    docs/results/bootstrap.md says how often that suffices.
    """
    return max(fewest, seeds)


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


def median_ranks(ranks: Float32[Tensor, "r s"]) -> Float32[Tensor, " s"]:
    """The median over repeats."""
    return ranks.median(dim=0).values.float() if ranks.numel() else ranks.new_zeros(ranks.shape[1])


#: One in ORPHAN_PARTS pairs becomes an orphan, on each side. Trials end with enough orphans; the
#: last two numbers limit the trials, usually and for a doubtful result.
ORPHAN_PARTS, ENOUGH_ORPHANS, USUAL_TRIALS, MAX_TRIALS = 8, 200, 3, 16
#: A result is doubtful when less than this share of it has a partner: half of it may be wrong.
DOUBTFUL_SHARE = 0.75
#: Share of items with a partner that are found.
FINDABLE_SHARE = 0.97


@dataclass(frozen=True)
class OrphanTrials:
    """The counts of all trials.

    trials   the number of trials
    orphans  the smaller pool's orphans in them
    paired   those that were paired with an item that most held-out maps confirm
    """

    trials: int = 0
    orphans: int = 0
    paired: int = 0

    @property
    def share(self) -> float:
        """The share of orphans that are paired all the same, in [0, 1]; nan without any."""
        return self.paired / self.orphans if self.orphans else math.nan

    def needs_another(self, pairs: int, pair_share: float) -> bool:
        """Whether this many pairs, a share `pair_share` of the smaller pool, need a trial."""
        if pairs < ORPHAN_PARTS:
            return False
        first = self.orphans < ENOUGH_ORPHANS and self.trials < USUAL_TRIALS
        return first or (
            self.trials < MAX_TRIALS and share_with_partner(pair_share, self.share) < DOUBTFUL_SHARE
        )

    def right_share(self, pairs: int, pair_share: float) -> float:
        """The share of the pairs whose items belong together, as `share_with_partner`; of a
        doubtful result the lower bound.

        The bound uses the upper end of Wilson's interval for the paired orphans; a pair that
        becomes an orphan twice counts once.
        """
        right = share_with_partner(pair_share, self.share)
        if right >= DOUBTFUL_SHARE:
            return right
        different = min(self.orphans, pairs)
        return share_with_partner(
            pair_share, wilson_upper(math.ceil(self.share * different), different)
        )


def run_trial(
    x: Float32[Tensor, "n rx"],
    y: Float32[Tensor, "m ry"],
    pairs: Int64[Tensor, "p 2"],
    trials: OrphanTrials,
    *,
    seed: int,
    beat: Beat,
) -> OrphanTrials:
    """The earlier trials and one more, with at least ORPHAN_PARTS pairs (p, 2); deterministic by
    seed and number of trials.
    """
    generator = torch.Generator().manual_seed((seed * 1_000_003 + trials.trials) % 2**63)
    shuffled = pairs[torch.randperm(len(pairs), generator=generator).to(pairs.device)]
    count = len(pairs) // ORPHAN_PARTS
    paired = _paired_orphans(
        x, y, shuffled[:count], shuffled[count : 2 * count], shuffled[2 * count :], beat
    )
    return OrphanTrials(trials.trials + 1, trials.orphans + count, trials.paired + paired)


def share_with_partner(pair_share: float, orphan_share: float) -> float:
    """The share of pairs whose items belong together, in [0, 1], from the share of orphans that are
    paired.

    pair_share    a, the pairs as a share of the smaller pool
    orphan_share  o, the share of orphans that are paired
    If a share c of the items has a partner, then a = FINDABLE_SHARE c + o (1 - c), and the second
    part is wrong. Where items with a partner are harder to find than FINDABLE_SHARE, the result is
    too low.
    """
    if math.isnan(orphan_share) or pair_share <= 0:
        return 1.0
    if pair_share <= orphan_share or orphan_share >= FINDABLE_SHARE:
        return 0.0
    common = min(1.0, (pair_share - orphan_share) / (FINDABLE_SHARE - orphan_share))
    return 1 - orphan_share * (1 - common) / pair_share


def _paired_orphans(
    x: Float32[Tensor, "n rx"],
    y: Float32[Tensor, "m ry"],
    without_y: Int64[Tensor, "o 2"],
    without_x: Int64[Tensor, "o 2"],
    known: Int64[Tensor, "k 2"],
    beat: Beat,
) -> int:
    """The number of paired orphans of the smaller pool, when each of these pairs loses one item."""
    rows_x, place_x = _remaining_rows(len(x), without_x[:, 0])
    rows_y, place_y = _remaining_rows(len(y), without_y[:, 1])
    left, right = x[rows_x], y[rows_y]
    known = torch.stack([place_x[known[:, 0]], place_y[known[:, 1]]], dim=1)

    def matched(pairs: Int64[Tensor, "h 2"]) -> Int64[Tensor, " n"]:
        return learn_and_match(left, right, pairs, beat=beat)

    claimed = partner_pairs(matched(known))
    is_orphan = (
        torch.isin(claimed[:, 0], place_x[without_y[:, 0]])
        if len(x) <= len(y)
        else torch.isin(claimed[:, 1], place_y[without_x[:, 1]])
    )
    claimed = claimed[is_orphan]
    votes = torch.zeros(len(claimed), device=x.device)
    for repeat in range(CONFIRMATIONS):
        half = draw_half(len(known), repeat, 0).to(known.device)
        votes += matched(known[half])[claimed[:, 0]] == claimed[:, 1]
    return int((votes > CONFIRMATIONS / 2).sum())


def _remaining_rows(
    rows: int, removed: Int64[Tensor, " o"]
) -> tuple[Int64[Tensor, " l"], Int64[Tensor, " n"]]:
    """The remaining rows (l,), and the place of each among them (n,), undefined for others."""
    remains = torch.ones(rows, dtype=torch.bool, device=removed.device)
    remains[removed] = False
    return remains.nonzero()[:, 0], remains.cumsum(dim=0) - 1
