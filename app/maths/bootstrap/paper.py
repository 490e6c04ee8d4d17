"""Anchors from a few seed pairs: the paper's anchor optimisation (Cannistraci et al. 2023, section 2 and Algorithm 1).

What the text leaves open, and what is done here: pools are centred on their own mean before they are scaled to unit length;
the seeds stay fixed (left free, the optimisation forgets them); the cost is the Euclidean distance between relative vectors;
the correspondence of y is the x with the most mass in its column of the plan; two anchors that land on one item of the
target pool are told apart by keeping the nearer one. It fails without a sound when the seeds are too few: see the result's
`nearness`, and do not trust anchors you cannot check.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from app.maths.bootstrap.common import check_seeds
from app.maths.space import fit_space


@dataclass(frozen=True)
class Settings:
    """size    how many parallel anchors to aim for, seeds included
    steps   optimisation steps (the paper: 250 for retrieval, 125 for stitching), and Adam's learning rate (.02, .05)
    epsilon, sinkhorn_steps   of the correspondence (1e-4 and 1)
    seed    draws the source anchors and the start of the unknown target anchors
    """

    size: int
    steps: int = 250
    learning_rate: float = 0.02
    epsilon: float = 1e-4
    sinkhorn_steps: int = 1
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Anchors:
    """pairs     (m, 2) rows (i of the source pool, j of the target pool), seeds first; m <= size, each j at most once
    nearness  (m,) cosine of each optimised anchor to the item it was rounded to: 1 for seeds
    loss      the last mean squared difference of relative vectors
    """

    pairs: Int64[Tensor, "m 2"]
    nearness: Float32[Tensor, " m"]
    loss: float


def correspondence(
    first: Float32[Tensor, "n k"], second: Float32[Tensor, "m k"], *, epsilon: float, steps: int
) -> Int64[Tensor, " m"]:
    """For each row of `second` the row of `first` with the most mass in the entropic plan between them.

    first (n, k), second (m, k): relative vectors. Cost M_ij = |first_i - second_j|, uniform weights, `steps` Sinkhorn iterations
    from zero potentials in the log domain: u = eps (log 1/n - logsumexp_j (v - M)/eps), then v alike.
    Returns (m,) indices in 0..n-1. Source: Cuturi 2013; log domain as M / eps reaches 1e5.
    """
    cost = torch.cdist(first, second)
    n, m = cost.shape
    v = torch.zeros(m, device=cost.device)
    u = torch.zeros(n, device=cost.device)
    for _ in range(steps):
        u = -epsilon * (torch.logsumexp((v - cost) / epsilon, dim=1) + math.log(n))
        v = -epsilon * (torch.logsumexp((u[:, None] - cost) / epsilon, dim=0) + math.log(m))
    return (u[:, None] - cost).argmax(dim=0)


def optimise(
    source_pool: Float[Tensor, "n dx"],
    target_pool: Float[Tensor, "m dy"],
    seeds: list[tuple[int, int]],
    settings: Settings,
    *,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> Anchors:
    """Grow seed pairs into `settings.size` parallel anchors.

    source_pool  (n, d_x) and target_pool (m, d_y): raw vectors in the encoders' units; no known order beyond the seeds
    on_step      called with (steps done, loss) before each step; what it raises ends the optimisation
    Works where the pools are; the answer is on the CPU. Deterministic for equal inputs, seed and device.
    Raises InvalidSeeds, and as `fit_space`.
    """
    check_seeds(seeds, source=len(source_pool), target=len(target_pool), size=settings.size)
    x, y = fit_space(source_pool).unit.float(), fit_space(target_pool).unit.float()
    generator = torch.Generator().manual_seed(settings.seed)
    rows = _source_rows(len(x), [i for i, _ in seeds], settings.size, generator)
    known = y[[j for _, j in seeds]]
    free = torch.randn(settings.size - len(seeds), y.shape[1], generator=generator)
    # Drawn on the CPU, whatever the device: equal seeds start alike everywhere.
    free = torch.nn.functional.normalize(free.to(y.device)).requires_grad_()
    relative_x = x @ x[rows].T
    optimiser = torch.optim.Adam([free], lr=settings.learning_rate)
    last = 0.0
    for step in range(settings.steps if len(free) else 0):
        on_step(step, last)
        relative_y = y @ torch.cat([known, free]).T
        partner = correspondence(relative_x, relative_y.detach(), epsilon=settings.epsilon, steps=settings.sinkhorn_steps)
        loss = (relative_x[partner] - relative_y).square().mean()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        last = loss.item()
        optimiser.step()
        with torch.no_grad():
            # Back onto the sphere: the constraint |a| = 1 of equation 1.
            free.copy_(torch.nn.functional.normalize(free))
    on_step(settings.steps, last)
    pairs, nearness = _discretise(rows, seeds, y.cpu(), free.detach().cpu())
    return Anchors(pairs, nearness, last)


def _source_rows(pool: int, seeds: list[int], size: int, generator: torch.Generator) -> list[int]:
    """The seeds' source rows, then others at random up to `size`."""
    taken = set(seeds)
    others = [i for i in torch.randperm(pool, generator=generator).tolist() if i not in taken]
    return seeds + others[: size - len(seeds)]


def _discretise(
    rows: list[int], seeds: list[tuple[int, int]], y: Float32[Tensor, "m dy"], free: Float32[Tensor, "f dy"]
) -> tuple[Int64[Tensor, "p 2"], Float32[Tensor, " p"]]:
    """Round each optimised anchor to its nearest item; the nearest claim to an item wins, and a seed's item is taken."""
    pairs = [list(pair) for pair in seeds]
    nearness = [1.0] * len(seeds)
    taken = {j for _, j in seeds}
    if len(free):
        cosines, nearest = (free @ y.T).clamp(-1.0, 1.0).max(dim=1)
        for index in cosines.argsort(descending=True, stable=True).tolist():
            j = int(nearest[index])
            if j not in taken:
                taken.add(j)
                pairs.append([rows[len(seeds) + index], j])
                nearness.append(float(cosines[index]))
    return torch.tensor(pairs), torch.tensor(nearness)
