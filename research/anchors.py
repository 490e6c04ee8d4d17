"""Choices of anchors that the product does not offer, because `uniform` does as well, or nearly
(docs/how-to/anchor-sets.md).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from app.maths.geometry.sampling import check_size, cluster_centres
from app.maths.geometry.space import fit_space
from app.maths.translators.inverse import farthest_points


def medoids(pool: Float[Tensor, "n d"], *, size: int, seed: int) -> list[int]:
    """The item nearest to each of `size` k-means centres (k-means++ start, Lloyd) of the pool's
    unit vectors.

    pool  (n, d), any units; centred and scaled to unit length first. Returns at most `size`
    distinct indices, sorted. Raises InvalidOption, and as `fit_space`. Source: Moschella et al.
    2023, appendix (anchor selection, kmeans).
    """
    check_size(size, pool.shape[0])
    points = fit_space(pool).unit
    return sorted(
        set(torch.cdist(cluster_centres(points, size=size, seed=seed), points).argmin(dim=1).tolist())
    )


def farthest(pool: Float[Tensor, "n d"], *, size: int, seed: int) -> list[int]:
    """Greedy farthest points by 1 - |cos| around the pool's mean, from a seeded start.

    `pool` (n, d) is in any units. Returns `size` indices in the order chosen; fewer if some items
    equal the mean. Raises InvalidOption, and as `fit_space`. Source: Moschella et al. 2023,
    appendix (anchor selection, fps).
    """
    check_size(size, pool.shape[0])
    unit = fit_space(pool).unit
    usable = (unit.abs().amax(dim=1) > 0).nonzero().flatten()
    start = usable[torch.randint(len(usable), (1,), generator=torch.Generator().manual_seed(seed))]
    return farthest_points(unit, delta=0.0, start=int(start))[:size]
