"""Anchors from a few seed pairs: the paper's anchor optimisation (Cannistraci et al. 2023, section
2 and Algorithm 1).

docs/decisions/0007-bootstrap.md lists what the paper leaves open, and our choices. The method fails
silently when there are too few seeds: do not use its anchors without checking them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from app.maths.bootstrap.anchor_optimisation import (
    DescentSettings,
    RelativePools,
    TargetRelatives,
    optimise,
)
from app.maths.bootstrap.pools import GrownPairs, OnStep, Pools, State, ignore_step
from app.maths.bootstrap.sinkhorn import column_argmax, sinkhorn, source_potential

#: columns: every y is compared with the x that has the most mass in its column of the plan; rows:
#: every x with its y.
Argmax = Literal["columns", "rows"]


@dataclass(frozen=True)
class PaperSettings:
    """The settings of the paper's method.

    size    the number of parallel anchors to reach, seeds included
    steps   optimisation steps (the paper: 250 for retrieval, 125 for stitching), and Adam's
            learning rate (.02, .05)
    epsilon, sinkhorn_steps   of the correspondence (1e-4 and 1)
    seed    draws the source anchors and the start of the unknown target anchors
    freeze_seeds, argmax      choices that the paper leaves open
    """

    size: int
    steps: int = 250
    learning_rate: float = 0.02
    epsilon: float = 1e-4
    sinkhorn_steps: int = 1
    seed: int = 0
    freeze_seeds: bool = True
    argmax: Argmax = "columns"


def grow(
    pools: Pools,
    seeds: list[tuple[int, int]],
    settings: PaperSettings,
    *,
    state: State | None = None,
    on_step: OnStep = ignore_step,
) -> GrownPairs:
    """Algorithm 1: pairs without an estimate of confidence. State, determinism and errors: as for
    `anchor_optimisation.optimise`.
    """
    descent = DescentSettings(
        settings.size, settings.steps, settings.learning_rate, settings.freeze_seeds, settings.seed
    )

    def correspond(relative: RelativePools) -> TargetRelatives:
        by = _match_columns if settings.argmax == "columns" else _match_rows
        return by(relative, epsilon=settings.epsilon, steps=settings.sinkhorn_steps)

    return optimise(pools, seeds, descent, correspond, state=state, on_step=on_step)


def _match_columns(relative: RelativePools, *, epsilon: float, steps: int) -> TargetRelatives:
    """Every y should get the relative vector of the x with the most mass in its column."""
    x, y, memory, beat = relative.x, relative.y, relative.memory, relative.beat
    u = source_potential(x, y, epsilon=epsilon, steps=steps, memory=memory, beat=beat)
    partner = column_argmax(x, y, u, epsilon=epsilon, memory=memory, beat=beat)
    return TargetRelatives(torch.arange(len(y), device=y.device), x[partner], partner)


def _match_rows(relative: RelativePools, *, epsilon: float, steps: int) -> TargetRelatives:
    """For every x, the y with the most mass in its row should get x's relative vector: some y are
    chosen often, others never.
    """
    x, y, memory, beat = relative.x, relative.y, relative.memory, relative.beat
    _, v = sinkhorn(x, y, epsilon=epsilon, steps=steps, memory=memory, beat=beat)
    partner = column_argmax(y, x, v, epsilon=epsilon, memory=memory, beat=beat)
    return TargetRelatives(partner, x, partner)
