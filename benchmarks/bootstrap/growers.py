"""Every method that grows anchors, by name: one line each."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import store
import torch
from draws import GT, Case, draw

from app.maths.bootstrap import baselines, paper, soft_plan
from app.maths.bootstrap.common import Grown, OnStep, Pools, ignore

Seeds = list[tuple[int, int]]

#: (pools, seeds, settings, state, on_step) -> what grew
Grow = Callable[..., Grown]
#: (pools, the draw's number) -> settings, a dataclass
Settings = Callable[[Pools, int], Any]


def _size(pools: Pools) -> int:
    """As many anchors as the paper aims for, or as there are items."""
    return min(GT, len(pools.x), len(pools.y))


METHODS: dict[str, tuple[Grow, Settings]] = {
    "procrustes": (baselines.procrustes, lambda pools, number: baselines.Procrustes()),
    "vecmap": (baselines.vecmap, lambda pools, number: baselines.Vecmap(seed=number)),
    "paper": (paper.grow, lambda pools, number: paper.Settings(_size(pools), seed=number)),
    "soft-plan": (soft_plan.grow, lambda pools, number: soft_plan.Settings(_size(pools), seed=number)),
}

#: settings that differ from a method's own
Changes = Mapping[str, object]
UNCHANGED: Changes = {}


def grow(
    method: str, pools: Pools, seeds: Seeds, number: int, *, changes: Changes = UNCHANGED, on_step: OnStep = ignore
) -> Grown:
    """By the named method; what it draws is decided by the draw's number."""
    make, settings = METHODS[method]
    return make(pools, seeds, replace(settings(pools, number), **changes), on_step=on_step)


def grown(method: str, case: Case, count: int, number: int, changes: Changes = UNCHANGED) -> tuple[Grown, float]:
    """What a method makes of the first `count` seeds of a draw, and the seconds of one core that it took."""

    def made() -> tuple[Grown, float]:
        drawn = draw(case, number)
        begun = time.process_time()
        found = grow(method, drawn.pools, drawn.seeds(count), number, changes=changes)
        return found, time.process_time() - begun

    return store.grown((method, case.name, count, number, json.dumps(changes, sort_keys=True)), made)


def most_confident(found: Grown, count: int) -> torch.Tensor:
    """The `count` pairs of most confidence; the first in the method's own order where it has none."""
    if bool(found.confidence.isnan().any()):
        return found.pairs[:count]
    return found.pairs[found.confidence.argsort(descending=True, stable=True)[:count]]
