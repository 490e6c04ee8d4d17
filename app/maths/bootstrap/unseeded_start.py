"""A first overlap without seeds: the centroids of both pools, matched by their positions relative
to each other.

Centroids of k-means are few enough for the quadratic assignment problem max_P tr(K_x P K_y P^T),
solved by FAQ from many starts (Vogelstein et al. 2015, scipy's); the overlap of matched centroids
starts the annealing. Published variants: Artetxe et al. 2018 start from similarity distributions,
Dar 2025 (mini-vec2vec) from matched centroids; this is the latter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from app.maths.bootstrap.neighbours import Beat

#: Rows of a pool that centroids are computed from.
MOST_CENTROID_ROWS = 10_000
#: Rounds of k-means, and rows that its first centroids are drawn from, because scipy reads all of
#: them for each.
KMEANS_ROUNDS, INITIAL_ROWS = 20, 2_000


@dataclass(frozen=True)
class CentroidSettings:
    """The settings of an unseeded start.

    count   centroids of each pool
    starts  of the assignment; the best one counts
    """

    count: int = 40
    starts: int = 20


def centroid_overlap(
    x: Float32[Tensor, "n rx"],
    y: Float32[Tensor, "m ry"],
    settings: CentroidSettings,
    *,
    seed: int,
    beat: Beat,
) -> Float32[Tensor, "rx ry"]:
    """sum_c cx_c cy_p(c)^T (r_x, r_y) over matched centroids, weighted with the smaller cluster; x
    and y unit rows.
    """
    generator = np.random.default_rng(seed)
    some_x, some_y = (
        _evenly_spread(side, MOST_CENTROID_ROWS).cpu().numpy().astype(np.float64) for side in (x, y)
    )
    # At most as many as there are different rows: k-means++ cannot choose among rows that are all
    # chosen already.
    different = (_distinct_rows(_evenly_spread(some, INITIAL_ROWS)) for some in (some_x, some_y))
    count = min(settings.count, len(x) // 2, len(y) // 2, *different)
    (centres_x, weight_x), (centres_y, weight_y) = (
        _centroids(some, count, generator, beat) for some in (some_x, some_y)
    )
    kernel_x, kernel_y = (_kernel(centres) for centres in (centres_x, centres_y))
    from scipy.optimize import quadratic_assignment  # it takes a second, and few need it

    best, value = np.arange(count), -np.inf
    for _ in range(settings.starts):
        beat()
        assignment = quadratic_assignment(
            kernel_x,
            kernel_y,
            method="faq",
            options={"maximize": True, "P0": "randomized", "rng": generator},
        )
        if assignment.fun > value:
            best, value = assignment.col_ind, assignment.fun
    weight = np.minimum(weight_x, weight_y[best])
    return torch.from_numpy((centres_x * weight[:, None]).T @ centres_y[best]).to(x)


RowArray = TypeVar("RowArray", Tensor, np.ndarray)


def _evenly_spread(rows: RowArray, most: int) -> RowArray:
    """Fewer than 2 `most` rows, evenly spread."""
    return rows[:: max(1, len(rows) // most)]


def _distinct_rows(rows: np.ndarray) -> int:
    """The number of rows that differ in float32."""
    return len(np.unique(rows.round(6), axis=0))


def _centroids(
    rows: np.ndarray, count: int, generator: np.random.Generator, beat: Beat
) -> tuple[np.ndarray, np.ndarray]:
    """Centroids (count, r) on the sphere, and the number of rows of each."""
    from scipy.cluster.vq import kmeans2

    beat()
    centres, labels = kmeans2(
        _evenly_spread(rows, INITIAL_ROWS), count, minit="++", seed=generator, iter=1
    )
    for _ in range(KMEANS_ROUNDS - 1):
        beat()
        centres, labels = kmeans2(rows, centres, minit="matrix", iter=1)
    lengths = np.linalg.norm(centres, axis=1, keepdims=True)
    return centres / np.maximum(lengths, 1e-12), np.bincount(labels, minlength=count).astype(
        np.float64
    )


def _kernel(centres: np.ndarray) -> np.ndarray:
    """Cosines, without each centroid's own."""
    kernel: np.ndarray = centres @ centres.T
    np.fill_diagonal(kernel, 0.0)
    return kernel
