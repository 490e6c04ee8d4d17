"""Every method that grows anchors, by name, with one way to run it and one to judge its pairs."""

from __future__ import annotations

import math

import torch

from app.maths.bootstrap import annealing, paper, self_learning
from app.maths.bootstrap.estimate import (
    CONFIRMATIONS,
    Outcome,
    Votes,
    confirm_pairs,
    draw_half,
    estimate_right,
    rows_to_label,
    wrong_seeds,
)
from app.maths.bootstrap.pools import (
    GrownPairs,
    OnStep,
    Pools,
    State,
    Step,
    ignore_step,
    seed_tensor,
)

MethodSettings = self_learning.SelfLearningSettings | paper.PaperSettings

#: the settings class of each method
SETTINGS_CLASSES: dict[str, type[MethodSettings]] = {
    "self-learning": self_learning.SelfLearningSettings,
    "paper": paper.PaperSettings,
}
DEFAULT_METHOD = "self-learning"


def run(
    pools: Pools,
    seeds: list[tuple[int, int]],
    settings: MethodSettings,
    *,
    state: State | None = None,
    on_step: OnStep = ignore_step,
) -> Outcome:
    """Grow anchors by the method that the settings belong to. State, determinism and errors: as for
    that method.
    """
    if isinstance(settings, self_learning.SelfLearningSettings):
        return self_learning.learn(pools, seeds, settings, state=state, on_step=on_step)
    pairs = paper.grow(pools, seeds, settings, state=state, on_step=on_step)
    return judge_pairs(
        pools, seeds, pairs, seed=settings.seed, on_step=on_step, total=settings.steps
    )


@torch.no_grad()
def judge_pairs(
    pools: Pools,
    seeds: list[tuple[int, int]],
    grown: GrownPairs,
    *,
    seed: int,
    on_step: OnStep = ignore_step,
    total: int = 0,
) -> Outcome:
    """The verdict of held-out maps on pairs that came without an estimate.

    The confidence of a pair is the share of held-out maps that choose it, and the estimate is the
    mean of that: too low where the spaces are weak, and never high for unrelated pairs.
    """

    def beat() -> None:
        on_step(Step(total, total, grown.facts))

    x, y = (
        annealing.principal_directions(pools.x, beat=beat),
        annealing.principal_directions(pools.y, beat=beat),
    )
    pairs, seed_rows = (rows.to(pools.device) for rows in (grown.pairs, seed_tensor(seeds)))
    rounds = []
    for repeat in range(CONFIRMATIONS):
        half = draw_half(len(pairs), repeat, seed).to(pairs.device)
        rounds.append(confirm_pairs(x.along, y.along, pairs, seed_rows, half, beat=beat))
    votes = Votes.counted(pairs, *zip(*rounds, strict=True))
    estimate = estimate_right(votes, votes.confirmed, agreed=math.nan, chance=None)
    # A result that is mostly wrong cannot identify wrong seeds.
    wrong_rows = (
        wrong_seeds(votes, seed_rows.cpu(), x.along, y.along)
        if estimate.right > self_learning.LIKELY_RIGHT
        else []
    )
    believed = [i for row, (i, _) in enumerate(seeds) if row not in set(wrong_rows)]
    certain = grown.pairs[votes.confirmed > self_learning.LIKELY_RIGHT, 0]
    label_next = rows_to_label(
        x, torch.tensor(believed, dtype=torch.int64), certain, self_learning.ROWS_TO_LABEL
    )
    return Outcome(grown.pairs, votes.confirmed, estimate, wrong_rows, label_next, grown.facts)
