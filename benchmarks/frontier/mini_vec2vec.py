"""mini-vec2vec (Dar 2025, arXiv 2510.02348), written from the paper: the peer of `no_pairs`.

Both pools are clustered many times, the centroids matched by quadratic assignment, rows compared by
their cosines to matched centroids, and the orthogonal map fitted to rows and the means of their
neighbours; then refined by neighbours of the mapped rows, and by centroids of many clusters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import quadratic_assignment
from torch import Tensor
from torch.nn.functional import normalize

from app.maths.alignment.alignment import mean_rows, orthogonal
from app.maths.bootstrap.neighbours import nearest_rows

#: Starts of one assignment by exchanges of two.
ASSIGNMENT_STARTS = 10


@dataclass(frozen=True)
class PaperSteps:
    """The paper's steps.

    clusters, runs, neighbours  of the start: centroids, clusterings, neighbours averaged
    rounds, mixing, sample      of the first refinement; the sample is of each pool
    fine_clusters               of the second refinement
    """

    clusters: int = 20
    runs: int = 30
    neighbours: int = 50
    rounds: int = 50
    mixing: float = 0.5
    sample: int = 5_000
    fine_clusters: int = 500


@torch.no_grad()
def align(x: Tensor, y: Tensor, *, steps: PaperSteps = PaperSteps(), seed: int = 0) -> Tensor:
    """The orthogonal map of centred unit rows x (n, d_x) and y (m, d_y)."""
    generator = torch.Generator().manual_seed(seed)
    pairs = [_matched_centroids(x, y, steps.clusters, generator) for _ in range(steps.runs)]
    relative_x, relative_y = (
        normalize(rows @ torch.cat([pair[side] for pair in pairs]).T)
        for side, rows in enumerate((x, y))
    )
    chosen = torch.randperm(len(x), generator=generator)[: 2 * steps.sample]
    _, nearest = nearest_rows(relative_x[chosen], relative_y, steps.neighbours)
    rotation = orthogonal(x[chosen].T @ mean_rows(y, nearest))
    for _ in range(steps.rounds):
        some_x, some_y = (
            rows[torch.randperm(len(rows), generator=generator)[: steps.sample]] for rows in (x, y)
        )
        _, nearest = nearest_rows(normalize(some_x @ rotation), some_y, steps.neighbours)
        step = orthogonal(some_x.T @ mean_rows(some_y, nearest))
        rotation = (1 - steps.mixing) * rotation + steps.mixing * step
    count = min(steps.fine_clusters, len(x) // 4)
    centres = normalize(_clusters(x, _drawn(x, count, generator), 10))
    partners = normalize(_clusters(y, normalize(centres @ orthogonal(rotation)), 10))
    return orthogonal(centres.T @ partners)


def _matched_centroids(
    x: Tensor, y: Tensor, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    some = [rows[torch.randperm(len(rows), generator=generator)[:10_000]] for rows in (x, y)]
    left, right = (normalize(_clusters(rows, _drawn(rows, count, generator), 20)) for rows in some)
    tables = [(each @ each.T).double().numpy() for each in (left, right)]
    number = np.random.default_rng(int(torch.randint(2**31, (1,), generator=generator)))
    best, value = np.arange(count), -np.inf
    for _ in range(ASSIGNMENT_STARTS):
        found = quadratic_assignment(
            *tables, method="2opt", options={"maximize": True, "rng": number}
        )
        if found.fun > value:
            best, value = found.col_ind, found.fun
    return left, right[torch.from_numpy(best)]


def _drawn(rows: Tensor, count: int, generator: torch.Generator) -> Tensor:
    return rows[torch.randperm(len(rows), generator=generator)[:count]]


def _clusters(rows: Tensor, centres: Tensor, rounds: int) -> Tensor:
    """Centroids of k-means from these; a cluster without rows keeps its centroid."""
    for _ in range(rounds):
        label = (rows @ normalize(centres).T).argmax(dim=1)
        count = torch.bincount(label, minlength=len(centres)).clamp_min(0)
        total = torch.zeros_like(centres).index_add_(0, label, rows)
        centres = torch.where(count[:, None] > 0, total / count.clamp_min(1)[:, None], centres)
    return centres
