"""Self-learning with the smaller pool as the target, whichever side it is.

Annealing gives every item of the target its share of the plan. Where the source is the smaller
pool, most of the target has no partner, and these shares pull the map away from the right one: of
500 items whose partners are among 3,000, no attempt agrees with another. Exchanged, they do
(benchmarks/bootstrap/contained.py).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Int64
from torch import Tensor

from app.maths.bootstrap import self_learning
from app.maths.bootstrap.annealing import principal_directions
from app.maths.bootstrap.attempts import SelfLearningSettings
from app.maths.bootstrap.estimate import rows_to_label
from app.maths.bootstrap.pools import OnStep, Pools, State, Step, check_pairs, ignore_step
from app.maths.bootstrap.self_learning import (
    LIKELY_RIGHT,
    ROWS_TO_LABEL,
    SelfLearningResult,
    draw_rows,
    seed_tensor,
)

#: The mark of a checkpoint of a run whose sides are exchanged.
EXCHANGED = "exchanged"


def learn(
    pools: Pools,
    seeds: list[tuple[int, int]],
    settings: SelfLearningSettings,
    *,
    state: State | None = None,
    on_step: OnStep = ignore_step,
) -> SelfLearningResult:
    """`self_learning.learn`, with the sides exchanged inside where the source is the smaller pool.

    `settings.rows` limits the source as given, also when it is the smaller pool. Determinism,
    checkpoints and errors: as for `self_learning.learn`.
    """
    check_pairs(seeds, source=len(pools.x), target=len(pools.y))
    # An earlier version did not exchange sides: it left checkpoints without a mark.
    if len(pools.x) < len(pools.y) and (not state or EXCHANGED in state):
        return _learn_exchanged(pools, seeds, settings, state or {}, on_step)
    return self_learning.learn(pools, seeds, settings, state=state, on_step=on_step)


@torch.no_grad()
def _learn_exchanged(
    pools: Pools,
    seeds: list[tuple[int, int]],
    settings: SelfLearningSettings,
    state: State,
    on_step: OnStep,
) -> SelfLearningResult:
    known = seed_tensor(seeds)
    rows = draw_rows(len(pools.x), settings.rows, known[:, 0], settings.seed)
    smaller = pools.x if len(rows) == len(pools.x) else pools.x[rows.to(pools.device)]
    places = torch.searchsorted(rows, known[:, 0].contiguous()).tolist()

    def mark(step: Step) -> None:
        stored = step.state and {**step.state, EXCHANGED: torch.tensor(1)}
        on_step(replace(step, state=stored))

    found = self_learning.learn(
        Pools(pools.y, smaller, pools.memory),
        [(j, place) for (_, j), place in zip(seeds, places, strict=True)],
        replace(settings, rows=len(pools.y)),
        state={name: tensor for name, tensor in state.items() if name != EXCHANGED},
        on_step=mark,
    )
    wrong = set(found.wrong_seeds)
    believed = [place for row, place in enumerate(places) if row not in wrong]
    # The rows to label are those of the source as given.
    ask = rows_to_label(
        principal_directions(smaller),
        torch.tensor(believed, dtype=torch.int64),
        found.pairs[found.confidence > LIKELY_RIGHT, 1],
        ROWS_TO_LABEL,
    )

    def turned(pairs: Int64[Tensor, "p 2"]) -> Int64[Tensor, "p 2"]:
        return torch.stack([rows[pairs[:, 1]], pairs[:, 0]], dim=1)

    votes = replace(found.votes, pairs=turned(found.votes.pairs))
    return replace(found, pairs=turned(found.pairs), ask=rows[ask], votes=votes)
