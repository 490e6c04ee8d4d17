"""Choices of anchors that the product does not offer, because `uniform` does as well, or nearly
(docs/how-to/anchor-sets.md).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from app.maths.geometry.space import fit_space
from app.maths.translators.inverse import farthest_points

#: Lloyd iterations at most; k-means on embeddings converges earlier.
LLOYD_ITERATIONS = 50


def medoids(pool: Float[Tensor, "n d"], *, size: int, seed: int) -> list[int]:
    """The item nearest to each of `size` k-means centres (k-means++ start, Lloyd) of the pool's
    unit vectors.

    pool  (n, d), any units; centred and scaled to unit length first. Returns at most `size`
    distinct indices, sorted. Raises as `fit_space`. Source: Moschella et al.
    2023, appendix (anchor selection, kmeans).
    """
    points = fit_space(pool).unit
    return sorted(
        set(
            torch.cdist(cluster_centres(points, size=size, seed=seed), points)
            .argmin(dim=1)
            .tolist()
        )
    )


def farthest(pool: Float[Tensor, "n d"], *, size: int, seed: int) -> list[int]:
    """Greedy farthest points by 1 - |cos| around the pool's mean, from a seeded start.

    `pool` (n, d) is in any units. Returns `size` indices in the order chosen; fewer if some items
    equal the mean. Raises as `fit_space`. Source: Moschella et al. 2023,
    appendix (anchor selection, fps).
    """
    unit = fit_space(pool).unit
    usable = (unit.abs().amax(dim=1) > 0).nonzero().flatten()
    start = usable[torch.randint(len(usable), (1,), generator=torch.Generator().manual_seed(seed))]
    return farthest_points(unit, delta=0.0, start=int(start))[:size]


def cluster_centres(
    points: Float64[Tensor, "n d"], *, size: int, seed: int
) -> Float64[Tensor, "m d"]:
    """Centres (m, d) of `size` clusters of points (n, d), by k-means with a k-means++ start and
    Lloyd iterations.

    size  1 <= size <= n
    """
    centres = _kmeans_plus_plus(points, size, torch.Generator().manual_seed(seed))
    previous = None
    for _ in range(LLOYD_ITERATIONS):
        nearest = torch.cdist(points, centres).argmin(dim=1)
        if previous is not None and torch.equal(nearest, previous):
            break
        previous = nearest
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        counts = torch.bincount(nearest, minlength=size)[:, None]
        # A cluster without members keeps its centre.
        centres = torch.where(counts > 0, sums / counts.clamp_min(1), centres)
    return centres


def _kmeans_plus_plus(
    points: Float64[Tensor, "n d"], size: int, generator: torch.Generator
) -> Float64[Tensor, "m d"]:
    """k-means++ starts. The probability of a point is proportional to its squared distance to the
    nearest start drawn before it.
    """
    chosen = [int(torch.randint(len(points), (1,), generator=generator))]
    nearest = (points - points[chosen[0]]).square().sum(dim=1)
    while len(chosen) < size:
        weights = nearest if bool(nearest.sum() > 0) else torch.ones_like(nearest)
        # Drawn on the CPU, so that equal seeds give equal starts on every device.
        index = int(torch.multinomial(weights.cpu(), 1, generator=generator))
        chosen.append(index)
        nearest = torch.minimum(nearest, (points - points[index]).square().sum(dim=1))
    return points[chosen]
