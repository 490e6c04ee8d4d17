"""Items whose partner is taken away, to know how readily what has no partner finds one: so many of the given pairs are wrong.

Orphans are made: an eighth of the pairs lose their item of y, and an eighth theirs of x. What is left learns, matches and
confirms as all pairs did. Of the smaller pool's orphans, so many are paired all the same. Where that leaves it open whether most
pairs are right, more trials are made and the estimate takes the worse end of their interval. Explained in docs/self-learning.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from app.maths.bootstrap.estimate import CONFIRMATIONS, draw_half, wilson_upper
from app.maths.bootstrap.neighbours import Beat
from app.maths.bootstrap.refinement import learn_and_match, partner_pairs

#: one in so many pairs is made an orphan, on each side; how many orphans suffice; trials at most, and of a doubtful answer
ORPHAN_PARTS, ENOUGH_ORPHANS, USUAL_TRIALS, MOST_TRIALS = 8, 200, 3, 16
#: an answer of which less than this share has a partner is doubtful: half of it may be wrong
DOUBTFUL_SHARE = 0.75
#: share of items with a partner that are found
FINDABLE_SHARE = 0.97


@dataclass(frozen=True)
class OrphanTrials:
    """trials  that were made
    made    the smaller pool's orphans in them
    found   those that were paired with an item that most held-out maps confirm
    """

    trials: int = 0
    made: int = 0
    found: int = 0

    @property
    def share(self) -> float:
        """Of orphans that are paired all the same, in [0, 1]; nan without any."""
        return self.found / self.made if self.made else math.nan

    def wants(self, pairs: int, given: float) -> bool:
        """Whether so many pairs, a share `given` of the smaller pool, need another trial."""
        if pairs < ORPHAN_PARTS:
            return False
        first = self.made < ENOUGH_ORPHANS and self.trials < USUAL_TRIALS
        return first or (
            self.trials < MOST_TRIALS and share_with_partner(given, self.share) < DOUBTFUL_SHARE
        )

    def right(self, pairs: int, given: float) -> float:
        """Of so many pairs, the share whose items belong together, as `with_partner`; of a doubtful answer the least it may be.

        That is by the upper end of Wilson's interval for the orphans that are paired; a pair that is made an orphan twice counts
        once.
        """
        right = share_with_partner(given, self.share)
        if right >= DOUBTFUL_SHARE:
            return right
        different = min(self.made, pairs)
        return share_with_partner(given, wilson_upper(math.ceil(self.share * different), different))


def run_trial(
    x: Float32[Tensor, "n rx"],
    y: Float32[Tensor, "m ry"],
    pairs: Int64[Tensor, "p 2"],
    tried: OrphanTrials,
    *,
    seed: int,
    memory: int,
    beat: Beat,
) -> OrphanTrials:
    """Those of before and one more trial, of PARTS pairs (p, 2) at least; deterministic by seed and number of trials."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + tried.trials) % 2**63)
    mixed = pairs[torch.randperm(len(pairs), generator=generator).to(pairs.device)]
    count = len(pairs) // ORPHAN_PARTS
    found = _paired_orphans(
        x, y, mixed[:count], mixed[count : 2 * count], mixed[2 * count :], memory, beat
    )
    return OrphanTrials(tried.trials + 1, tried.made + count, tried.found + found)


def share_with_partner(given: float, found: float) -> float:
    """Of the pairs that are given, the share whose items belong together, in [0, 1], by the share of orphans that are paired.

    given  pairs, as a share of the smaller pool; of its items a share c has a partner, so a = FOUND c + o (1 - c), and the
    second part of that is wrong. Where items with a partner are harder to find than FOUND, it says less than is true.
    """
    if math.isnan(found) or given <= 0:
        return 1.0
    if given <= found or found >= FINDABLE_SHARE:
        return 0.0
    common = min(1.0, (given - found) / (FINDABLE_SHARE - found))
    return 1 - found * (1 - common) / given


def _paired_orphans(
    x: Float32[Tensor, "n rx"],
    y: Float32[Tensor, "m ry"],
    without_y: Int64[Tensor, "o 2"],
    without_x: Int64[Tensor, "o 2"],
    known: Int64[Tensor, "k 2"],
    memory: int,
    beat: Beat,
) -> int:
    """How many orphans of the smaller pool are paired, when of those pairs one item each is gone."""
    rows_x, place_x = _remaining_rows(len(x), without_x[:, 0])
    rows_y, place_y = _remaining_rows(len(y), without_y[:, 1])
    left, right = x[rows_x], y[rows_y]
    known = torch.stack([place_x[known[:, 0]], place_y[known[:, 1]]], dim=1)

    def matched(pairs: Int64[Tensor, "h 2"]) -> Int64[Tensor, " n"]:
        return learn_and_match(left, right, pairs, memory=memory, beat=beat)

    claimed = partner_pairs(matched(known))
    lone = (
        torch.isin(claimed[:, 0], place_x[without_y[:, 0]])
        if len(x) <= len(y)
        else torch.isin(claimed[:, 1], place_y[without_x[:, 1]])
    )
    claimed = claimed[lone]
    votes = torch.zeros(len(claimed), device=x.device)
    for repeat in range(CONFIRMATIONS):
        half = draw_half(len(known), repeat, 0).to(known.device)
        votes += matched(known[half])[claimed[:, 0]] == claimed[:, 1]
    return int((votes > CONFIRMATIONS / 2).sum())


def _remaining_rows(
    rows: int, gone: Int64[Tensor, " o"]
) -> tuple[Int64[Tensor, " l"], Int64[Tensor, " n"]]:
    """(l,) the rows that are left, and (n,) the place of each among them; meaningless of those that are gone."""
    there = torch.ones(rows, dtype=torch.bool, device=gone.device)
    there[gone] = False
    return there.nonzero()[:, 0], there.cumsum(dim=0) - 1
