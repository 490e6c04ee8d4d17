"""How readily items without a partner are paired: trials with orphans, whose partner is removed.

An eighth of the pairs lose their item of y, and an eighth their item of x. The rest learns, matches
and confirms as all pairs did. The share of the smaller pool's orphans that is paired all the same
shows how many given pairs are wrong. If it leaves open whether most pairs are right, more trials
follow, and the estimate takes the worse end of their interval. docs/explanation/anchors.md explains
it.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from app.maths.bootstrap.estimate import CONFIRMATIONS, draw_half, wilson_upper
from app.maths.bootstrap.neighbours import Beat, learn_and_match, partner_pairs
from app.maths.bootstrap.pools import Progress

#: One in ORPHAN_PARTS pairs becomes an orphan, on each side. Trials end with enough orphans; the
#: last two numbers limit the trials, usually and for a doubtful result.
ORPHAN_PARTS, ENOUGH_ORPHANS, USUAL_TRIALS, MAX_TRIALS = 8, 200, 3, 16
#: A result is doubtful when less than this share of it has a partner: half of it may be wrong.
DOUBTFUL_SHARE = 0.75
#: Share of items with a partner that are found.
FINDABLE_SHARE = 0.97


def judge_by_orphans(
    x: Float32[Tensor, "n rx"],
    y: Float32[Tensor, "m ry"],
    pairs: Int64[Tensor, "p 2"],
    *,
    seed: int,
    progress: Progress,
) -> tuple[float, float]:
    """The share of the pairs (p, 2) whose items belong together, as `share_with_partner`, of a
    doubtful result the lower bound; and the share of orphans that are paired, nan of too few pairs.

    The bound uses the upper end of Wilson's interval for the paired orphans; a pair that becomes an
    orphan twice counts once. Deterministic by seed.
    """
    count, pair_share = len(pairs) // ORPHAN_PARTS, len(pairs) / min(len(x), len(y))
    paired, right, trial = 0, 1.0, 0
    while count and (
        (trial < USUAL_TRIALS and trial * count < ENOUGH_ORPHANS)
        or (trial < MAX_TRIALS and right < DOUBTFUL_SHARE)
    ):
        generator = torch.Generator().manual_seed((seed * 1_000_003 + trial) % 2**63)
        shuffled = pairs[torch.randperm(len(pairs), generator=generator).to(pairs.device)]
        without_y, without_x, known = shuffled.tensor_split([count, 2 * count])
        paired += _paired_orphans(x, y, without_y, without_x, known, progress.beat)
        trial += 1
        right = share_with_partner(pair_share, paired / (trial * count))
        progress.step()
    if not trial:
        return right, math.nan
    share = paired / (trial * count)
    if right < DOUBTFUL_SHARE:
        different = min(trial * count, len(pairs))
        most = wilson_upper(math.ceil(share * different), different)
        right = share_with_partner(pair_share, most)
    return right, share


def share_with_partner(pair_share: float, orphan_share: float) -> float:
    """The share of pairs whose items belong together, in [0, 1], from the share of orphans that are
    paired.

    pair_share    a, the pairs as a share of the smaller pool
    orphan_share  o, the share of orphans that are paired
    If a share c of the items has a partner, then a = FINDABLE_SHARE c + o (1 - c), and the second
    part is wrong. Where items with a partner are harder to find than FINDABLE_SHARE, the result is
    too low.
    """
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
