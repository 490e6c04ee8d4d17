"""Every method that grows anchors, by name, with one way to run it and one to judge what it found."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from app.maths.bootstrap import annealing, honesty, paper, self_learning, soft_plan
from app.maths.bootstrap.common import Grown, OnStep, Pools, State, Step, ignore

Settings = self_learning.Settings | soft_plan.Settings | paper.Settings

#: the settings class of each method
SETTINGS: dict[str, type[Settings]] = {
    "self-learning": self_learning.Settings,
    "soft-plan": soft_plan.Settings,
    "paper": paper.Settings,
}
DEFAULT = "self-learning"


@dataclass(frozen=True, eq=False)
class Outcome:
    """pairs        (p, 2) rows (i of x, j of y), seeds first; no item twice on a side
    confidence   (p,) probability that each is right
    estimate     of the share that is right
    wrong_seeds  rows of the seeds that the others contradict
    ask          (a,) rows of x whose partner would help most
    facts        numbers of the last step: loss, agreement
    """

    pairs: Int64[Tensor, "p 2"]
    confidence: Float32[Tensor, " p"]
    estimate: honesty.Estimate
    wrong_seeds: list[int]
    ask: Int64[Tensor, " a"]
    facts: Mapping[str, float]


def run(
    pools: Pools, seeds: list[tuple[int, int]], settings: Settings, *, state: State | None = None, on_step: OnStep = ignore
) -> Outcome:
    """Grow anchors by the method that the settings belong to. State, determinism, errors: as the method's own."""
    if isinstance(settings, self_learning.Settings):
        learnt = self_learning.learn(pools, seeds, settings, state=state, on_step=on_step)
        facts = learnt.grown().facts
        return Outcome(learnt.pairs, learnt.confidence, learnt.estimate, learnt.wrong_seeds, learnt.ask, facts)
    optimise = soft_plan.grow if isinstance(settings, soft_plan.Settings) else paper.grow
    grown = optimise(pools, seeds, settings, state=state, on_step=on_step)  # type: ignore[arg-type]
    return judge(pools, seeds, grown, seed=settings.seed, on_step=on_step, total=settings.steps)


@torch.no_grad()
def judge(
    pools: Pools, seeds: list[tuple[int, int]], grown: Grown, *, seed: int, on_step: OnStep = ignore, total: int = 0
) -> Outcome:
    """What held-out maps say of pairs that came without an estimate.

    The share of held-out maps that choose a pair is its confidence, and the mean of that the estimate: too low where the spaces
    are weak, and never high for pairs that have nothing to do with each other.
    """
    x, y = annealing.directions(pools.x), annealing.directions(pools.y)
    pairs, known = (rows.to(pools.device) for rows in (grown.pairs, torch.tensor(seeds, dtype=torch.int64).reshape(-1, 2)))

    def beat() -> None:
        on_step(Step(total, total, grown.facts))

    rounds = []
    for repeat in range(honesty.REPEATS):
        half = honesty.halves(len(pairs), repeat, seed).to(pairs.device)
        rounds.append(honesty.confirm(x.along, y.along, pairs, known, half, memory=pools.memory, beat=beat))
    confirmed = torch.stack([chosen for chosen, _ in rounds]).float().mean(dim=0).cpu()
    ranks = honesty.medians(torch.stack([rank for _, rank in rounds])).cpu()
    hits = int((ranks <= honesty.SUSPECT).sum())
    share = float(confirmed.double().mean().nan_to_num())
    told = honesty.Estimate(
        right=min(share, honesty.wilson_upper(hits, len(seeds))),
        agreement=math.nan,
        confirmed=share,
        seeds_confirmed=hits / len(seeds) if seeds else math.nan,
    )
    schedule = annealing.Schedule()
    along = x.coordinates(power=schedule.power, dimensions=schedule.dimensions)
    settled = torch.zeros(len(along), dtype=torch.bool, device=along.device)
    ask = honesty.ask_next(along, known[:, 0], settled, self_learning.ASKED).cpu()
    votes = honesty.Votes(grown.pairs, confirmed, ranks)
    return Outcome(grown.pairs, confirmed, told, honesty.wrong_seeds(votes, known.cpu()), ask, grown.facts)
