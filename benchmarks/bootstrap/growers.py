"""Every method that grows anchors, by name."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from app.maths.bootstrap import attempts, methods, paper
from app.maths.bootstrap.pools import GrownPairs, OnStep, Pools, ignore_step
from benchmarks.bootstrap import store
from benchmarks.bootstrap.draws import GT, Case, draw
from research import baselines

Seeds = list[tuple[int, int]]
#: settings that differ from the method's own
Changes = Mapping[str, object]
UNCHANGED: Changes = {}

#: (pools, seeds, settings, on_step=...) -> the pairs that grew
Grow = Callable[..., GrownPairs]
#: (pools, the draw's number) -> settings, a dataclass
Settings = Callable[[Pools, int], Any]

#: the fact that holds the estimated share of right pairs
SAID = "said"


def served(
    pools: Pools, seeds: Seeds, settings: methods.MethodSettings, *, on_step: OnStep
) -> GrownPairs:
    """A method that the service offers, with the service's estimate of its share of right pairs."""
    found = methods.run(pools, seeds, settings, on_step=on_step)
    told = {
        SAID: found.estimate.right,
        "agreement": found.estimate.agreement,
        "wrong_seeds": float(len(found.wrong_seeds)),
    }
    return GrownPairs(found.pairs, found.confidence, {**found.facts, **told})


def _size(pools: Pools) -> int:
    """As many anchors as the paper aims for, or as there are items."""
    return min(GT, len(pools.x), len(pools.y))


METHODS: dict[str, tuple[Grow, Settings]] = {
    "procrustes": (baselines.procrustes, lambda pools, number: baselines.Procrustes()),
    "vecmap": (baselines.vecmap, lambda pools, number: baselines.Vecmap(seed=number)),
    "paper": (served, lambda pools, number: paper.PaperSettings(_size(pools), seed=number)),
    "self-learning": (served, lambda pools, number: attempts.SelfLearningSettings(seed=number)),
}


def grow(
    method: str,
    pools: Pools,
    seeds: Seeds,
    number: int,
    *,
    changes: Changes = UNCHANGED,
    on_step: OnStep = ignore_step,
) -> GrownPairs:
    """Grow with the named method. The draw's number seeds whatever it draws at random."""
    make, settings = METHODS[method]
    return make(pools, seeds, changed(settings(pools, number), changes), on_step=on_step)


def changed(settings: Any, changes: Changes) -> Any:
    """Settings with some fields replaced; "schedule.power" names a field of a field."""
    for name, value in changes.items():
        field, _, inner = name.partition(".")
        new = replace(getattr(settings, field), **{inner: value}) if inner else value
        settings = replace(settings, **{field: new})
    return settings


def grown(
    method: str, case: Case, count: int, number: int, changes: Changes = UNCHANGED
) -> tuple[GrownPairs, float]:
    """What a method makes of the first `count` seeds of a draw, and the seconds of one core that it
    took.
    """

    def made() -> tuple[GrownPairs, float]:
        drawn = draw(case, number)
        begun = time.process_time()
        found = grow(method, drawn.pools, drawn.seeds(count), number, changes=changes)
        return found, time.process_time() - begun

    return store.grown(
        (method, case.name, count, number, json.dumps(changes, sort_keys=True)), made
    )


def beside_seeds(found: GrownPairs, seeds: Seeds) -> torch.Tensor:
    """(p,) bool: which pairs are not seeds. A method may have dropped unlikely seeds."""
    given = set(seeds)
    return torch.tensor([(i, j) not in given for i, j in found.pairs.tolist()], dtype=torch.bool)


def most_confident(found: GrownPairs, count: int) -> torch.Tensor:
    """The `count` most confident pairs; the first ones in the method's own order if it gives no
    confidence.
    """
    if bool(found.confidence.isnan().any()):
        return found.pairs[:count]
    return found.pairs[found.confidence.argsort(descending=True, stable=True)[:count]]
