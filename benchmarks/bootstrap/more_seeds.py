"""What are suggested seeds worth? Where the seeds do not suffice: ten more that self-learning
suggests, against ten at random.
"""

from __future__ import annotations

from collections.abc import Iterator

from app.maths.bootstrap import attempts, methods, self_learning
from benchmarks.bootstrap import counts, growers
from benchmarks.bootstrap.cells import Cell, Measured
from benchmarks.bootstrap.draws import CASES, draw
from app.maths.bootstrap import attempts

NAME = "asked"
PLACES = (
    ("texts, Qwen3 -> mpnet", 3),
    ("CIFAR-10, SqueezeNet -> V1 .75", 3),
    ("CIFAR-10, V2 -> SqueezeNet", 3),
    ("words, googlenews -> w2v", 5),
)
DRAWS = 3
WAYS = ("asked for", "at random")


def cells(*, quick: bool, draws: int | None) -> Iterator[Cell]:
    """By place and draw, both ways."""
    for name, count in PLACES[:1] if quick else PLACES:
        for number in range(1 if quick else min(draws or DRAWS, DRAWS)):
            for way in WAYS:
                yield Cell((NAME, name, way, count, number), measure, way)


def measure(name: str, way: str, count: int, number: int) -> Measured:
    """Whether the first seeds were refused, and what came of ten more."""
    drawn = draw(CASES[name], number)
    seeds = drawn.seeds(count + self_learning.ROWS_TO_LABEL)
    first = methods.run(drawn.pools, seeds[:count], attempts.SelfLearningSettings(seed=number))
    if way == WAYS[0]:
        seeds = seeds[:count] + [(i, int(drawn.partner[i])) for i in first.ask.tolist()]
    found = growers.grow("self-learning", drawn.pools, seeds, number)
    right = drawn.right(found.pairs[growers.beside_seeds(found, seeds)])
    return {
        "refused": not counts.believed(len(first.pairs), first.estimate.right),
        "found": len(found.pairs),
        "pairs": len(right),
        "right": int(right.sum()),
    }
