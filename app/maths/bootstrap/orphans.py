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

from app.maths.bootstrap.estimate import REPEATS, halves, wilson_upper
from app.maths.bootstrap.neighbours import Beat
from app.maths.bootstrap.refinement import paired, rematch

#: one in so many pairs is made an orphan, on each side; how many orphans suffice; trials at most, and of a doubtful answer
PARTS, ENOUGH, TRIALS, MOST_TRIALS = 8, 200, 3, 16
#: an answer of which less than this share has a partner is doubtful: half of it may be wrong
DOUBTFUL = 0.75
#: share of items with a partner that are found
FOUND = 0.97


@dataclass(frozen=True)
class Tried:
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
        if pairs < PARTS:
            return False
        first = self.made < ENOUGH and self.trials < TRIALS
        return first or (self.trials < MOST_TRIALS and with_partner(given, self.share) < DOUBTFUL)

    def right(self, pairs: int, given: float) -> float:
        """Of so many pairs, the share whose items belong together, as `with_partner`; of a doubtful answer the least it may be.

        That is by the upper end of Wilson's interval for the orphans that are paired; a pair that is made an orphan twice counts
        once.
        """
        right = with_partner(given, self.share)
        if right >= DOUBTFUL:
            return right
        different = min(self.made, pairs)
        return with_partner(given, wilson_upper(math.ceil(self.share * different), different))


def trial(
    x: Float32[Tensor, "n rx"],
    y: Float32[Tensor, "m ry"],
    pairs: Int64[Tensor, "p 2"],
    tried: Tried,
    *,
    seed: int,
    memory: int,
    beat: Beat,
) -> Tried:
    """Those of before and one more trial, of PARTS pairs (p, 2) at least; deterministic by seed and number of trials."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + tried.trials) % 2**63)
    mixed = pairs[torch.randperm(len(pairs), generator=generator).to(pairs.device)]
    count = len(pairs) // PARTS
    found = _found(x, y, mixed[:count], mixed[count : 2 * count], mixed[2 * count :], memory, beat)
    return Tried(tried.trials + 1, tried.made + count, tried.found + found)


def with_partner(given: float, found: float) -> float:
    """Of the pairs that are given, the share whose items belong together, in [0, 1], by the share of orphans that are paired.

    given  pairs, as a share of the smaller pool; of its items a share c has a partner, so a = FOUND c + o (1 - c), and the
    second part of that is wrong. Where items with a partner are harder to find than FOUND, it says less than is true.
    """
    if math.isnan(found) or given <= 0:
        return 1.0
    if given <= found or found >= FOUND:
        return 0.0
    common = min(1.0, (given - found) / (FOUND - found))
    return 1 - found * (1 - common) / given


def _found(
    x: Float32[Tensor, "n rx"],
    y: Float32[Tensor, "m ry"],
    without_y: Int64[Tensor, "o 2"],
    without_x: Int64[Tensor, "o 2"],
    known: Int64[Tensor, "k 2"],
    memory: int,
    beat: Beat,
) -> int:
    """How many orphans of the smaller pool are paired, when of those pairs one item each is gone."""
    rows_x, place_x = _left(len(x), without_x[:, 0])
    rows_y, place_y = _left(len(y), without_y[:, 1])
    left, right = x[rows_x], y[rows_y]
    known = torch.stack([place_x[known[:, 0]], place_y[known[:, 1]]], dim=1)

    def matched(pairs: Int64[Tensor, "h 2"]) -> Int64[Tensor, " n"]:
        return rematch(left, right, pairs, memory=memory, beat=beat)

    claimed = paired(matched(known))
    lone = (
        torch.isin(claimed[:, 0], place_x[without_y[:, 0]])
        if len(x) <= len(y)
        else torch.isin(claimed[:, 1], place_y[without_x[:, 1]])
    )
    claimed = claimed[lone]
    votes = torch.zeros(len(claimed), device=x.device)
    for repeat in range(REPEATS):
        half = halves(len(known), repeat, 0).to(known.device)
        votes += matched(known[half])[claimed[:, 0]] == claimed[:, 1]
    return int((votes > REPEATS / 2).sum())


def _left(rows: int, gone: Int64[Tensor, " o"]) -> tuple[Int64[Tensor, " l"], Int64[Tensor, " n"]]:
    """(l,) the rows that are left, and (n,) the place of each among them; meaningless of those that are gone."""
    there = torch.ones(rows, dtype=torch.bool, device=gone.device)
    there[gone] = False
    return there.nonzero()[:, 0], there.cumsum(dim=0) - 1
