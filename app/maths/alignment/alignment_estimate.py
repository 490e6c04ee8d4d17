"""What an alignment is worth, without a known pair.

Two maps, whose starts are from halves that share no item, translate the same random rows of x.
Two measures:

found_again  the share of rows whose translation by one map is nearest to its own translation by the
             other, among all of them. Maps that are wrong, or right in a part of the space only,
             lose rows: they are wrong in different ways.
agreement    the share of rows for which both maps choose the same nearest row of y. It falls with
             the noise of the maps, which costs right ones a few rows too.

right = found_again agreement^(1/8). docs/results/no-pairs.md compares it with the truth.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float32, Int64
from torch import Tensor
from torch.nn.functional import normalize

from app.maths.bootstrap.neighbours import Beat, no_beat, product_blocks

#: Rows of each pool that two maps are compared on. The estimate is for an index of that size.
ESTIMATE_ROWS = 2_000
#: The power of the agreement: so small that the estimate is below the measured top-1.
AGREEMENT_POWER = 0.125


@dataclass(frozen=True)
class AlignmentEstimate:
    """An estimate from two maps whose starts share no item.

    right            share of items whose translation is nearest to the right item among `index`
    mean_rank_share  mean rank, less 1, that one map gives to the other's nearest item, over `index`
    found_again      above
    agreement        above
    index            items that are searched
    """

    right: float
    mean_rank_share: float
    found_again: float
    agreement: float
    index: int


def compare_maps(
    x: Float32[Tensor, "n dx"],
    y: Float32[Tensor, "m dy"],
    maps: tuple[Float32[Tensor, "dx dy"], Float32[Tensor, "dx dy"]],
    *,
    seed: int,
    memory: int,
    beat: Beat = no_beat,
) -> AlignmentEstimate:
    """Compare two maps on random rows; rows of both pools are unit rows."""
    generator = torch.Generator().manual_seed(seed)
    index = min(ESTIMATE_ROWS, len(x), len(y))
    some_x, some_y = (
        side[torch.randperm(len(side), generator=generator)[:index].to(side.device)]
        for side in (x, y)
    )
    first, second = (normalize(some_x @ each) for each in maps)
    rows = torch.arange(index, device=x.device)
    chosen = torch.cat(
        [
            block.argmax(dim=1)
            for _, block in product_blocks(first, some_y, memory=memory, beat=beat)
        ]
    )
    behind = _ranks(second, some_y, chosen, memory=memory, beat=beat)
    own = _ranks(second, first, rows, memory=memory, beat=beat, ties=True)
    agreement = float((behind == 0).double().mean())
    # A row that another equals is not found.
    found = float((own == 1).double().mean())
    return AlignmentEstimate(
        right=found * agreement**AGREEMENT_POWER,
        mean_rank_share=float(behind.double().mean()) / index,
        found_again=found,
        agreement=agreement,
        index=index,
    )


def _ranks(
    q: Float32[Tensor, "n d"],
    y: Float32[Tensor, "m d"],
    chosen: Int64[Tensor, " n"],
    *,
    memory: int,
    beat: Beat,
    ties: bool = False,
) -> Int64[Tensor, " n"]:
    """(n,) the number of rows of y that are nearer to each q than the chosen one; with `ties`, of
    those that are at least as near, which it is itself.
    """
    ranks = torch.empty_like(chosen)
    for piece, block in product_blocks(q, y, memory=memory, beat=beat):
        own = block.gather(1, chosen[piece, None])
        ranks[piece] = ((block >= own) if ties else (block > own)).sum(dim=1)
    return ranks
