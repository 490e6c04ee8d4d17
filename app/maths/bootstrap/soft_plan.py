"""Anchor optimisation with frozen seeds and a soft plan that sharpens: where hard choices are
mostly wrong, a mean is less so.

The relative vector of each target item should be the mean of the source's relative vectors under
its column of the entropic plan. Epsilon falls geometrically from step to step, as a share of the
mean cost: at first each item is drawn to all, at last to nearly one. Anchors move little in a step,
so its plan starts from the potentials of the last: one iteration does what three from zero do.
Our variant of Cannistraci et al. 2023; docs/decisions/0007-bootstrap.md compares them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float32
from torch import Tensor

from app.maths.bootstrap.anchor_optimisation import (
    DescentSettings,
    RelativePools,
    TargetRelatives,
    optimise,
)
from app.maths.bootstrap.pools import GrownPairs, OnStep, Pools, State, ignore_step
from app.maths.bootstrap.sinkhorn import barycentre, sinkhorn

#: Rows of either side in the mean cost.
COST_ROWS = 512


@dataclass(frozen=True)
class SoftPlanSettings:
    """The settings of the soft plan.

    size    the number of parallel anchors to reach, seeds included
    steps   optimisation steps, and Adam's learning rate
    first_epsilon, last_epsilon   of the first and of the last step, as shares of the mean cost
    sinkhorn_steps   iterations for each plan, from the potentials of the one before
    seed    draws the source anchors and the start of the unknown target anchors
    """

    size: int
    steps: int = 250
    learning_rate: float = 0.02
    first_epsilon: float = 0.3
    last_epsilon: float = 0.02
    sinkhorn_steps: int = 1
    seed: int = 0


def grow(
    pools: Pools,
    seeds: list[tuple[int, int]],
    settings: SoftPlanSettings,
    *,
    state: State | None = None,
    on_step: OnStep = ignore_step,
) -> GrownPairs:
    """Pairs without an estimate of confidence. State, determinism and errors: as for
    `anchor_optimisation.optimise`.
    """
    descent = DescentSettings(
        settings.size, settings.steps, settings.learning_rate, freeze_seeds=True, seed=settings.seed
    )

    def correspond(relative: RelativePools) -> TargetRelatives:
        x, y, memory, beat = relative.x, relative.y, relative.memory, relative.beat
        epsilon = epsilon_share(settings, relative.step) * mean_cost(x, y)
        u, v = sinkhorn(
            x,
            y,
            epsilon=epsilon,
            steps=settings.sinkhorn_steps,
            start=relative.carried,
            memory=memory,
            beat=beat,
        )
        means, partner = barycentre(x, y, u, epsilon=epsilon, memory=memory, beat=beat)
        return TargetRelatives(torch.arange(len(y), device=y.device), means, partner, carried=v)

    return optimise(pools, seeds, descent, correspond, state=state, on_step=on_step)


def epsilon_share(settings: SoftPlanSettings, step: int) -> float:
    """Epsilon of a step as a share of the mean cost: first (last / first)^(step / (steps - 1))."""
    progress = step / max(1, settings.steps - 1)
    return float(
        settings.first_epsilon * (settings.last_epsilon / settings.first_epsilon) ** progress
    )


def mean_cost(x: Float32[Tensor, "n k"], y: Float32[Tensor, "m k"]) -> float:
    """Mean of |x_i - y_j| over at most COST_ROWS rows of either side, evenly spread; always above
    0.
    """
    some_x, some_y = (
        rows[torch.linspace(0, len(rows) - 1, min(COST_ROWS, len(rows))).long()] for rows in (x, y)
    )
    return max(float(torch.cdist(some_x, some_y).mean()), torch.finfo(torch.float32).eps)
