"""How many pairs are accepted, how many of them are right, and does the estimate know which runs
failed? By the number of seeds.

The seeds themselves are not counted. A run is good if more than half of its other pairs are right
and it found at least ten pairs; the service refuses fewer, because they are too few to judge.
"""

from __future__ import annotations

from collections.abc import Iterator

from app.bootstrap.run import FEWEST_JUDGED
from benchmarks.bootstrap import growers
from benchmarks.bootstrap.cells import Cell, Measured
from benchmarks.bootstrap.draws import CASES, draw

NAME = "counts"
COUNTS = (3, 5, 10, 15, 25, 50)
DRAWS = 10
QUICK = (5, 15)
#: pairs of encoders on which hardly any run succeeds, and a failure takes three times as long:
#: fewer draws
HARD = {"words, w2v -> fasttext": 5, "words, googlenews -> fasttext": 5}
#: without any seeds, which only self-learning supports: fewer draws
UNSEEDED, UNSEEDED_DRAWS = 0, 3


def cells(*, quick: bool, draws: int | None) -> Iterator[Cell]:
    """By case and draw."""
    for name in CASES:
        if quick and name.split(",")[0] in {
            other.split(",")[0] for other in list(CASES)[: list(CASES).index(name)]
        }:
            continue
        for number in range(1 if quick else min(draws or DRAWS, HARD.get(name, DRAWS))):
            for method in growers.METHODS:
                for count in QUICK if quick else COUNTS:
                    yield Cell((NAME, name, method, count, number), measure)
            if not quick and number < UNSEEDED_DRAWS:
                yield Cell((NAME, name, "self-learning", UNSEEDED, number), measure)


def measure(name: str, method: str, count: int, number: int) -> Measured:
    """One run: what it found, what is right, and what the estimate says of it."""
    drawn = draw(CASES[name], number)
    found = growers.grow(method, drawn.pools, drawn.seeds(count), number)
    new = growers.beside_seeds(found, drawn.seeds(count))
    right = drawn.right(found.pairs[new])
    measured: Measured = {
        "found": len(found.pairs),
        "pairs": len(right),
        "right": int(right.sum()),
    }
    if growers.SAID in found.facts:
        said = found.facts[growers.SAID]
        measured |= {"said_share": said, "said_good": believed(len(found.pairs), said)}
    return measured


#: a run is called good if at least this share of its pairs is expected to be right: the default
#: `min_precision` of POST /bootstrap
LEAST = 0.5


def believed(pairs: int, said: float) -> bool:
    """Whether the service accepts so many pairs with that estimated share of right ones."""
    return pairs >= FEWEST_JUDGED and said >= LEAST


def good(cell: Measured) -> bool:
    """Whether most of a run's pairs are right."""
    return bool(cell["found"] >= FEWEST_JUDGED and cell["right"] > cell["pairs"] / 2)
