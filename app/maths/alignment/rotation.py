"""The orthogonal map between two pools, refined by the neighbours that it finds.

One round: map rows of x, find for each row its nearest rows of y by CSLS and for each row of y its
nearest of x, and fit the next map to the rows and the means of their neighbours. A mean of
neighbours stands for the partner that a row of a disjoint pool does not have.
Sources: Dar 2025 (mini-vec2vec), section 3.2, whose rounds average neighbours by cosine and mix the
maps; Conneau, Lample et al. 2018 (CSLS, which converges in half the rounds here).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float32, Int64
from torch import Tensor
from torch.nn.functional import normalize

from app.maths.bootstrap.neighbours import Beat, nearest_rows, no_beat
from app.maths.bootstrap.refinement import CSLS_NEIGHBOURS

#: Numbers that are averaged at a time.
NUMBERS_PER_MEAN = 2**22


@dataclass(frozen=True)
class Rounds:
    """A stage of the refinement.

    count       rounds
    rows        random rows of each pool that take part in a round
    neighbours  of a row that are averaged
    """

    count: int
    rows: int
    neighbours: int


def orthogonal(overlap: Float32[Tensor, "dx dy"]) -> Float32[Tensor, "dx dy"]:
    """The (semi-)orthogonal map W that maximises tr(W^T M) for an overlap M: Procrustes."""
    left, _, right = torch.linalg.svd(overlap.double(), full_matrices=False)
    rotation: Tensor = (left @ right).float()
    return rotation


def refine(
    x: Float32[Tensor, "n dx"],
    y: Float32[Tensor, "m dy"],
    rotation: Float32[Tensor, "dx dy"],
    rounds: Rounds,
    *,
    seed: int,
    memory: int,
    beat: Beat = no_beat,
) -> Float32[Tensor, "dx dy"]:
    """The map after some rounds on random rows of both pools, which are unit rows."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(rounds.count):
        some_x, some_y = (
            side[torch.randperm(len(side), generator=generator)[: rounds.rows].to(side.device)]
            for side in (x, y)
        )
        mapped = normalize(some_x @ rotation)
        of_x, of_y = neighbours(mapped, some_y, rounds.neighbours, memory=memory, beat=beat)
        overlap = some_x.T @ normalize(mean_rows(some_y, of_x))
        overlap += normalize(mean_rows(some_x, of_y)).T @ some_y
        rotation = orthogonal(overlap)
    return rotation


def neighbours(
    q: Float32[Tensor, "n d"],
    y: Float32[Tensor, "m d"],
    k: int,
    *,
    memory: int,
    beat: Beat = no_beat,
) -> tuple[Int64[Tensor, "n k"], Int64[Tensor, "m k"]]:
    """For each row of q its k nearest of y by CSLS, and for each of y its k nearest of q."""
    k, few = min(k, len(q), len(y)), min(CSLS_NEIGHBOURS, len(q), len(y))
    from_q, _ = nearest_rows(q, y, few, memory=memory, beat=beat)
    from_y, _ = nearest_rows(y, q, few, memory=memory, beat=beat)
    hub_q, hub_y = from_q.mean(dim=1, keepdim=True), from_y.mean(dim=1, keepdim=True)
    # A row's own offset does not change the order of its neighbours.
    one_q, one_y = torch.ones_like(hub_q), torch.ones_like(hub_y)
    twice_q, twice_y = torch.cat([2 * q, one_q], dim=1), torch.cat([2 * y, one_y], dim=1)
    less_q, less_y = torch.cat([q, -hub_q], dim=1), torch.cat([y, -hub_y], dim=1)
    _, of_q = nearest_rows(twice_q, less_y, k, memory=memory, beat=beat)
    _, of_y = nearest_rows(twice_y, less_q, k, memory=memory, beat=beat)
    return of_q, of_y


def mean_rows(rows: Float32[Tensor, "m d"], chosen: Int64[Tensor, "n k"]) -> Float32[Tensor, "n d"]:
    """(n, d) the mean of the chosen rows."""
    step = max(1, NUMBERS_PER_MEAN // (chosen.shape[1] * rows.shape[1]))
    return torch.cat([rows[piece].mean(dim=1) for piece in torch.split(chosen, step)])
