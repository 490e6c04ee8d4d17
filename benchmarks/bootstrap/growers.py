"""Every method that grows anchors, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from app.maths.bootstrap import self_learning
from app.maths.bootstrap.estimate import Outcome
from app.maths.bootstrap.pools import Pools


@dataclass(frozen=True, eq=False)
class GrownPairs:
    """Pairs grown from seeds.

    pairs       (p, 2) rows (i of x, j of y), kept seeds first; no item twice on a side
    confidence  (p,) estimated probability that the pair is right
    facts       numbers of the last step, and the service's estimate
    """

    pairs: torch.Tensor
    confidence: torch.Tensor
    facts: Mapping[str, float]


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


METHODS: dict[str, tuple[Grow, Settings]] = {
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
