"""Random samples of a pool's items, and the centres of its clusters."""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor

from app.errors import InvalidOption

#: Lloyd iterations at most; k-means on embeddings converges earlier.
LLOYD_ITERATIONS = 50


def check_size(size: int, pool: int) -> None:
    """Raise InvalidOption unless 1 <= size <= pool."""
    if not 1 <= size <= pool:
        raise InvalidOption(
            f"`size` must lie between 1 and the pool's {pool} items, got {size}.", field="size"
        )


def draw_uniformly(pool: int, *, size: int, seed: int) -> list[int]:
    """`size` of `pool` indices without repetition; every subset is equally likely. Raises
    InvalidOption.
    """
    check_size(size, pool)
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(pool, generator=generator)[:size].tolist()


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
