"""Every method that grows anchors, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from app.maths.bootstrap import self_learning
from app.maths.bootstrap.estimate import Outcome
from app.maths.bootstrap.pools import Pools
from benchmarks.bootstrap.draws import GT
from research import anchor_optimisation
from research.grown_pairs import GrownPairs

Seeds = list[tuple[int, int]]

#: (pools, seeds, settings) -> the pairs that grew
Grow = Callable[..., GrownPairs]
#: (pools, the draw's number) -> settings, a dataclass
Settings = Callable[[Pools, int], Any]

#: the fact that holds the estimated share of right pairs
SAID = "said"


def _with_estimate(found: Outcome) -> GrownPairs:
    """The pairs of a method, with the service's estimate of its share of right pairs."""
    facts = {**found.facts, SAID: found.estimate.right}
    return GrownPairs(found.pairs, found.confidence, facts)


def optimise(pools: Pools, seeds: Seeds, settings: anchor_optimisation.PaperSettings) -> GrownPairs:
    """The paper's anchor optimisation."""
    grown = anchor_optimisation.grow(pools, seeds, settings)
    return _with_estimate(anchor_optimisation.judge_pairs(pools, seeds, grown, seed=settings.seed))


def _size(pools: Pools) -> int:
    """As many anchors as the paper aims for, or as there are items."""
    return min(GT, len(pools.x), len(pools.y))


METHODS: dict[str, tuple[Grow, Settings]] = {
    "paper": (
        optimise,
        lambda pools, number: anchor_optimisation.PaperSettings(_size(pools), seed=number),
    ),
    "self-learning": (
        lambda pools, seeds, settings: _with_estimate(self_learning.learn(pools, seeds, settings)),
        lambda pools, number: self_learning.SelfLearningSettings(seed=number),
    ),
}


def grow(
    method: str,
    pools: Pools,
    seeds: Seeds,
    number: int,
) -> GrownPairs:
    """Grow with the named method. The draw's number seeds whatever it draws at random."""
    make, settings = METHODS[method]
    return make(pools, seeds, settings(pools, number))


def beside_seeds(found: GrownPairs, seeds: Seeds) -> torch.Tensor:
    """(p,) bool: which pairs are not seeds. A method may have dropped unlikely seeds."""
    given = set(seeds)
    return torch.tensor([(i, j) not in given for i, j in found.pairs.tolist()], dtype=torch.bool)
