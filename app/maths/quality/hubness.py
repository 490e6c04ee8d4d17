"""Hubs, index rows that appear in far too many neighbour lists, and a correction that moves them
away.

CSLS(x, y) = 2 cos(x, y) - r_T(x) - r_S(y): r_T(x) is the mean cosine of a query x to the rows of
the index nearest to it, r_S(y) that of a row y to the queries nearest to it. A row near to every
query is not related to all of them, and r_S lowers its score. r_T is the same for all rows, so it
changes no query's order. The correction needs many queries at once, because r_S averages over them.
Sources: Conneau, Lample et al. 2018, "Word Translation Without Parallel Data", section 2.3; hubs:
Radovanovic et al. 2010.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from app.maths.quality.metrics import ScoreBlocks, cosine_blocks

#: Computes blocks of cosines of unit queries (n, d) to a unit index (m, d), like `cosine_blocks`.
CosineBlockFunction = Callable[[Float64[Tensor, "n d"], Float64[Tensor, "m d"]], ScoreBlocks]


def csls(
    queries: Float64[Tensor, "n d"],
    index: Float64[Tensor, "m d"],
    neighbours: int,
    *,
    cosines: CosineBlockFunction = cosine_blocks,
) -> ScoreBlocks:
    """CSLS of unit queries (n, d) to a unit index (m, d), in blocks, each in [-4, 4].

    neighbours  in 1..min(n, m), for both means; an item that is on both sides counts like any other
    cosines     computes the blocks: first the index against the queries, then the queries against
                the index
    """
    far = local_similarity(index, queries, neighbours, cosines=cosines)
    for start, block in cosines(queries, index):
        near = block.topk(neighbours, dim=1).values.mean(dim=1)
        yield start, block.mul_(2).sub_(near[:, None]).sub_(far)


def local_similarity(
    rows: Float64[Tensor, "m d"],
    others: Float64[Tensor, "n d"],
    neighbours: int,
    *,
    cosines: CosineBlockFunction = cosine_blocks,
) -> Float64[Tensor, " m"]:
    """The mean cosine of each unit row (m, d) to the `neighbours` in 1..n unit others (n, d)
    nearest to it, in [-1, 1].
    """
    return torch.cat(
        [block.topk(neighbours, dim=1).values.mean(dim=1) for _, block in cosines(rows, others)]
    )


def skewness(near: Int64[Tensor, "n k"], size: int) -> float:
    """The hubness of an index: the skewness of N_k over its rows, where N_k(y) counts the lists (n,
    k) that contain row y.

    size  m, the rows of the index
    E (N_k - mu)^3 / sigma^3: 0 where all rows are found equally often, above 1 where few rows are
    found very often; dimensionless. Sparse lists are skewed by themselves: N_k of random lists has
    1 / sqrt(n k / m). Source: Radovanovic et al. 2010, equation 1.
    """
    counts = torch.bincount(near.flatten(), minlength=size).double()
    deviation = counts - counts.mean()
    variance = deviation.square().mean()
    return float(deviation.pow(3).mean() / variance**1.5) if variance > 0 else 0.0
