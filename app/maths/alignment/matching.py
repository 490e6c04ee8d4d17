"""Matches the components of two pools by how they relate to each other: a quadratic assignment.

Maximises sum over tables t of tr(A_t P B_t^T P^T) + <L, P> over permutations P, where A_t and B_t
are the components' tables and L compares their signatures; by FAQ from many starts; the best one
counts. Source: Vogelstein et al. 2015, "Fast approximate quadratic programming for graph
matching", here for several tables and unequal numbers of components.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from app.maths.alignment.components import Components
from app.maths.bootstrap.neighbours import Beat, no_beat

Table = NDArray[np.float64]

#: Rounds of FAQ, and the change of an entry below which it ends.
FAQ_ROUNDS, FAQ_CONVERGED = 60, 1e-3
#: Rounds of Sinkhorn that make a random start doubly stochastic.
START_ROUNDS = 20
#: Weight of the signatures for each table.
SIGNATURE_WEIGHT = 5.0


@dataclass(frozen=True, eq=False)
class MatchedComponents:
    """Components a of x and b of y that belong together.

    a, b    (r,) rows of the components; r is the smaller number
    weight  (r,) how well the rows of their tables agree: mean product over tables, cut at 0
    value   the objective over the number of entries
    """

    a: NDArray[np.int64]
    b: NDArray[np.int64]
    weight: Table
    value: float


def match_components(
    x: Components, y: Components, *, starts: int, seed: int, beat: Beat = no_beat
) -> MatchedComponents:
    """The best matching that `starts` starts find; deterministic for equal seeds."""
    if len(x.prototypes) > len(y.prototypes):
        other = match_components(y, x, starts=starts, seed=seed, beat=beat)
        return MatchedComponents(other.b, other.a, other.weight, other.value)
    tables = [
        (left.double().cpu().numpy(), right.double().cpu().numpy())
        for left, right in zip(x.tables, y.tables, strict=True)
    ]
    linear = SIGNATURE_WEIGHT * len(tables) * _signature_scores(x, y)
    generator, shape = np.random.default_rng(seed), linear.shape
    best, value = np.zeros(0, dtype=np.int64), -np.inf
    for start in range(starts):
        beat()
        plan = np.full(shape, 1.0 / shape[1])
        if start:
            plan = (plan + _random_plan(generator, shape)) / 2
        columns, reached = _ascend(tables, linear, plan)
        if reached > value:
            best, value = columns, reached
    rows = np.arange(shape[0])
    agreement = np.mean(
        [(left * right[np.ix_(best, best)]).mean(axis=1) for left, right in tables], axis=0
    )
    return MatchedComponents(rows, best, np.maximum(agreement, 0.0), value / shape[0] ** 2)


def _ascend(
    tables: list[tuple[Table, Table]], linear: Table, plan: Table
) -> tuple[NDArray[np.int64], float]:
    """The assignment that FAQ reaches from a plan, and its objective."""
    for _ in range(FAQ_ROUNDS):
        gradient = linear + sum(
            left @ plan @ right.T + left.T @ plan @ right for left, right in tables
        )
        change = _assignment(gradient) - plan
        slope = float((gradient * change).sum())
        curve = _quadratic(tables, change)
        step = 1.0 if slope + curve > 0 else 0.0
        if curve < 0:
            step = min(1.0, -slope / (2 * curve))
        plan = plan + step * change
        if float(np.abs(step * change).mean()) * plan.shape[1] < FAQ_CONVERGED:
            break
    final = _assignment(plan)
    value = _quadratic(tables, final) + float((linear * final).sum())
    return final.argmax(axis=1), value


def _quadratic(tables: list[tuple[Table, Table]], plan: Table) -> float:
    return float(sum(((left @ plan @ right.T) * plan).sum() for left, right in tables))


def _assignment(scores: Table) -> Table:
    from scipy.optimize import linear_sum_assignment  # it takes a second, and few need it

    rows, columns = linear_sum_assignment(scores, maximize=True)
    chosen = np.zeros_like(scores)
    chosen[rows, columns] = 1.0
    return chosen


def _random_plan(generator: np.random.Generator, shape: tuple[int, ...]) -> Table:
    plan = generator.random(shape)
    for _ in range(START_ROUNDS):
        plan /= plan.sum(axis=0) * (shape[1] / shape[0])
        plan /= plan.sum(axis=1, keepdims=True)
    return plan


def _signature_scores(x: Components, y: Components) -> Table:
    """(r_x, r_y) standardised negative squared distances of the signatures."""
    both = torch.cat([x.signature, y.signature])
    scale = both.std(dim=0).clamp_min(1e-12)
    scores = -torch.cdist(x.signature / scale, y.signature / scale).square()
    return (
        ((scores - scores.mean()) / scores.std(correction=0).clamp_min(1e-12))
        .double()
        .cpu()
        .numpy()
    )
