"""One seed in five is wrong: does the run report these, does it report right ones, and are the
pairs right all the same?
"""

from __future__ import annotations

from collections.abc import Iterator

from app.maths.bootstrap import self_learning
from benchmarks.bootstrap.cells import Cell, Measured
from benchmarks.bootstrap.draws import CASES, draw

NAME = "swapped"
PLACES = (
    ("Banking77, MiniLM -> static", 10),
    ("CIFAR-10, V1 .75 -> .25", 10),
    ("texts, bge-large -> jina-v3", 10),
    ("texts, Qwen3 -> mpnet", 15),
    ("CIFAR-10, V2 -> SqueezeNet", 25),
    ("words, googlenews -> w2v", 50),
)
DRAWS = 5
SHARE = 5


def cells(*, quick: bool, draws: int | None) -> Iterator[Cell]:
    """By place and draw."""
    for name, count in PLACES[:1] if quick else PLACES:
        for number in range(1 if quick else min(draws or DRAWS, DRAWS)):
            yield Cell((NAME, name, "self-learning", count, number), measure)


def measure(name: str, method: str, count: int, number: int) -> Measured:
    """One run in which the first fifth of the seeds have exchanged partners."""
    drawn = draw(CASES[name], number)
    seeds, wrong = drawn.seeds(count), count // SHARE
    given = [(i, seeds[(row + 1) % wrong][1]) for row, (i, _) in enumerate(seeds[:wrong])] + seeds[
        wrong:
    ]
    found = self_learning.learn(drawn.pools, given, self_learning.SelfLearningSettings(seed=number))
    right = drawn.right(found.pairs)
    return {
        "wrong": wrong,
        "named": sum(row < wrong for row in found.wrong_seeds),
        "accused": sum(row >= wrong for row in found.wrong_seeds),
        "found": len(found.pairs),
        "pairs": len(right),
        "right": int(right.sum()),
        "said_share": found.estimate.right,
    }
