"""What every method that grows anchors from seeds takes and gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from app.errors import InvalidSeeds
from app.maths.space import fit_space
from app.types import repeats

#: where a method stands, enough to go on from there as if nothing had happened: tensors by name, on the CPU
State = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Step:
    """done, total  rounds or steps
    facts        what a reader of the progress wants to know: loss, agreement
    state        where the method stands, or None where it cannot be interrupted: such a step is only a sign of life
    """

    done: int
    total: int
    facts: Mapping[str, float] = field(default_factory=dict)
    state: State | None = None


#: called at every step and between the pieces of a long one, several times a second; what it raises ends the method
OnStep = Callable[[Step], None]


def ignore(step: Step) -> None:
    """Nobody looks."""


@dataclass(frozen=True, eq=False)
class Pools:
    """x, y      (n, d_x) and (m, d_y) float32: items of the two pools, centred on their pool's mean, length 1
    memory    bytes that a method may use beside the pools for tables that grow with n and m together
    """

    x: Float32[Tensor, "n dx"]
    y: Float32[Tensor, "m dy"]
    memory: int = 512 * 2**20

    @property
    def device(self) -> torch.device:
        """Where both pools lie."""
        return self.x.device


@dataclass(frozen=True, eq=False)
class Grown:
    """pairs       (p, 2) rows (i of x, j of y), the seeds that were kept first; no item twice on a side
    confidence  (p,) estimated probability that the pair is right; nan where the method has no estimate
    facts       numbers of the last step: loss, agreement
    """

    pairs: Int64[Tensor, "p 2"]
    confidence: Float32[Tensor, " p"]
    facts: Mapping[str, float]


def fit_pools(source: Float[Tensor, "n dx"], target: Float[Tensor, "m dy"], *, memory: int = 512 * 2**20) -> Pools:
    """Pools of raw vectors, in the encoders' units, made ready. Raises as `fit_space`."""
    return Pools(fit_space(source).unit.float(), fit_space(target).unit.float(), memory)


def check_seeds(seeds: list[tuple[int, int]], *, source: int, target: int, size: int) -> None:
    """Raise InvalidSeeds unless there are 2 to `size` pairs, in range, no item twice on a side, and `size` fits both pools."""
    if not 2 <= len(seeds) <= size:
        raise InvalidSeeds(f"expected between 2 and {size} seed pairs, got {len(seeds)}", field="seeds")
    if size > min(source, target):
        raise InvalidSeeds(f"size {size} is more than the smaller pool's {min(source, target)} items", field="size")
    check_pairs(seeds, source=source, target=target)


def check_pairs(seeds: list[tuple[int, int]], *, source: int, target: int) -> None:
    """Raise InvalidSeeds unless all pairs are in range and no item is twice on a side."""
    outside = [row for row, (i, j) in enumerate(seeds) if not (0 <= i < source and 0 <= j < target)]
    if outside:
        raise InvalidSeeds(f"seeds point outside pools of {source} and {target} items", field="seeds", rows=outside)
    for side in (0, 1):
        if rows := repeats(pair[side] for pair in seeds):
            raise InvalidSeeds("a seed repeats an item of its pool", field="seeds", rows=rows)
