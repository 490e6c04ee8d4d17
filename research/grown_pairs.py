"""The pairs that a method grows from seeds, and the check of the seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Float32, Int64
from torch import Tensor

from app.errors import InvalidSeeds
from app.maths.bootstrap.pools import check_pairs


@dataclass(frozen=True, eq=False)
class GrownPairs:
    """Pairs grown from seeds.

    pairs       (p, 2) rows (i of x, j of y), kept seeds first; no item twice on a side
    confidence  (p,) estimated probability that the pair is right; nan where the method has no
                estimate
    facts       numbers of the last step: loss, agreement
    """

    pairs: Int64[Tensor, "p 2"]
    confidence: Float32[Tensor, " p"]
    facts: Mapping[str, float]


def check_seeds(seeds: list[tuple[int, int]], *, source: int, target: int, size: int) -> None:
    """Raise InvalidSeeds unless there are 2 to `size` pairs, in range, no item twice on a side, and
    `size` fits both pools.
    """
    if not 2 <= len(seeds) <= size:
        raise InvalidSeeds(f"Send 2 to {size} seed pairs; got {len(seeds)}.", field="seeds")
    if size > min(source, target):
        raise InvalidSeeds(
            f"`size` must not exceed the smaller pool's {min(source, target)} items, got {size}.",
            field="size",
        )
    check_pairs(seeds, source=source, target=target)
