"""Pools that have only some items in common, or none: does the estimate know it? And pools of few
directions, where everything looks alike.

The source's pool is half of the drawn items. The given share of the target's pool is the same
items, and the rest are others. Synthetic pools are clouds with a given number of directions, with
noise as a share of each direction's spread, or two unrelated clouds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from app.maths.bootstrap.pools import fit_pools
from benchmarks.bootstrap import counts, growers
from benchmarks.bootstrap.cells import Cell, Measured
from benchmarks.bootstrap.draws import CASES, draw

NAME = "strangers"
ITEMS, SEEDS, DRAWS = 1_500, 15, 2
PLACES = (
    "Banking77, MiniLM -> static",
    "CIFAR-10, V1 .75 -> .25",
    "CIFAR-10, V2 -> SqueezeNet",
    "words, googlenews -> w2v",
)
COMMON = (0.75, 0.5, 0.25, 0.2, 0.1, 0.0)
#: pools of entirely different items
FOREIGN = (
    ("Banking77, MiniLM -> static", "CIFAR-10, V1 1.0 -> 0.5"),
    ("CIFAR-10, V2 -> SqueezeNet", "words, googlenews -> w2v"),
    ("words, w2v -> fasttext", "CIFAR-10, V1 .75 -> .25"),
)
DIRECTIONS, SIZES = (3, 6, 12, 24, 64), (100, 300, 1_500)
NOISES = (0.1, 0.3, 0.6)
#: the spread of a direction falls with this power of its rank
DECAY = 0.7

#: source, target, and for each row of the source its partner, or -1
Pair = tuple[Tensor, Tensor, Tensor]


def cells(*, quick: bool, draws: int | None) -> Iterator[Cell]:
    """By kind and draw."""
    for number in range(1 if quick else min(draws or DRAWS, DRAWS)):
        for kind in list(KINDS)[:: 12 if quick else 1]:
            yield Cell((NAME, kind, "self-learning", SEEDS, number), measure)


def measure(kind: str, method: str, count: int, number: int) -> Measured:
    """Measure as `counts` does. The seed of an item without a partner is wrong."""
    made, arguments = KINDS[kind]
    x, y, partner = made(*arguments, number)
    seeds = [(i, j if j >= 0 else i) for i, j in enumerate(partner[:count].tolist())]
    found = growers.grow(method, fit_pools(x, y), seeds, number)
    pairs = found.pairs[growers.beside_seeds(found, seeds)]
    right = partner[pairs[:, 0]] == pairs[:, 1]
    return {
        "found": len(found.pairs),
        "pairs": len(right),
        "right": int(right.sum()),
        "said_share": found.facts[growers.SAID],
        "said_good": counts.believed(len(found.pairs), found.facts[growers.SAID]),
    }


def some_in_common(place: str, common: float, number: int) -> Pair:
    """Real pools that share the given part of their items."""
    drawn = draw(replace(CASES[place], items=2 * ITEMS), number)
    kept = int(common * ITEMS)
    y = drawn.y[drawn.partner]
    return _mixed(drawn.x[:ITEMS], torch.cat([y[:kept], y[ITEMS : 2 * ITEMS - kept]]), kept, number)


def foreign(one: str, other: str, number: int) -> Pair:
    """The source of one case and the target of another."""
    x, y = draw(CASES[one], number).x, draw(CASES[other], number).y
    return _mixed(x, y, 0, number)


def synthetic(directions: int, items: int, noise: float | None, number: int) -> Pair:
    """A rotated cloud and its noisy copy; without noise, two clouds."""
    generator = torch.Generator().manual_seed(number)
    spread = torch.arange(1, directions + 1).pow(-DECAY)
    x = torch.randn(items, directions, generator=generator) * spread
    other = torch.randn(items, directions, generator=generator) * spread
    turn = torch.linalg.qr(torch.randn(directions, directions, generator=generator)).Q
    if noise is None:
        return _mixed(x, other @ turn, 0, number)
    return _mixed(x, (x + noise * other) @ turn, items, number)


def _mixed(x: Tensor, y: Tensor, kept: int, number: int) -> Pair:
    """The target in its own order. Its first `kept` rows are the source's items."""
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(number))
    partner = torch.full((len(x),), -1)
    partner[:kept] = order.argsort()[:kept]
    return x, y[order], partner


KINDS: dict[str, tuple[Callable[..., Pair], tuple[Any, ...]]] = {
    **{
        f"{place}: {common:.0%} in common": (some_in_common, (place, common))
        for place in PLACES
        for common in COMMON
    },
    **{
        f"{one.split(' ->')[0]} / {other.split('-> ')[1]} of {other.split(',')[0]}": (
            foreign,
            (one, other),
        )
        for one, other in FOREIGN
    },
    **{
        f"unrelated clouds, {d} directions, {n} items": (synthetic, (d, n, None))
        for d in DIRECTIONS
        for n in SIZES
    },
    **{
        f"a cloud and its copy, {d} directions, noise {noise}": (synthetic, (d, ITEMS, noise))
        for d in DIRECTIONS
        for noise in NOISES
    },
}
