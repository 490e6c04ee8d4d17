"""How many pairs are accepted, how many of them are right, and does the estimate know which runs
failed? By the number of seeds.

The seeds themselves are not counted. A run is good if more than half of its other pairs are right
and it found at least ten pairs; the service refuses fewer, because they are too few to judge.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from app.services.anchors.bootstrap import FEWEST_JUDGED
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
#: slower methods have fewer numbers of seeds and fewer draws; with the 250 texts only fewer draws
SLOW: dict[str, tuple[tuple[int, ...], int]] = {
    "vecmap": ((5, 15), 1),
    "paper": ((15, 50), 1),
    "soft-plan": ((15, 50), 1),
}
SLOW_TEXTS = {"paper": 5, "soft-plan": 5}


def cells(*, quick: bool, draws: int | None) -> Iterator[Cell]:
    """By case and draw."""
    for name, case in CASES.items():
        if quick and name.split(",")[0] in {
            other.split(",")[0] for other in list(CASES)[: list(CASES).index(name)]
        }:
            continue
        for number in range(1 if quick else min(draws or DRAWS, HARD.get(name, DRAWS))):
            for method in growers.METHODS:
                counts, most = (
                    (COUNTS, SLOW_TEXTS.get(method, DRAWS))
                    if case.items is None
                    else SLOW.get(method, (COUNTS, DRAWS))
                )
                if number < most:
                    for count in [count for count in counts if count in QUICK] if quick else counts:
                        yield Cell((NAME, name, method, count, number), measure, method)
            if not quick and number < UNSEEDED_DRAWS:
                yield Cell(
                    (NAME, name, "self-learning", UNSEEDED, number), measure, "self-learning"
                )


def measure(name: str, method: str, count: int, number: int) -> Measured:
    """One run: what it found, what is right, and what the estimate says of it."""
    return judged(name, method, count, number, growers.UNCHANGED)


def judged(name: str, method: str, count: int, number: int, changes: growers.Changes) -> Measured:
    """One run with changed settings."""
    drawn = draw(CASES[name], number)
    found, seconds = growers.grown(method, CASES[name], count, number, changes)
    new = growers.beside_seeds(found, drawn.seeds(count))
    right, confidence = drawn.right(found.pairs[new]), found.confidence[new]
    measured: Measured = {
        "grow_seconds": seconds,
        "found": len(found.pairs),
        "pairs": len(right),
        "right": int(right.sum()),
        "seeds_kept": int((~new).sum()),
        "facts": {
            name: None if math.isnan(value) else value for name, value in found.facts.items()
        },
    }
    if len(right) and not bool(confidence.isnan().any()):
        measured["expected"] = float(confidence.double().mean())
        measured["brier"] = float((confidence - right.float()).square().double().mean())
        # Of the pairs with such a confidence: how many there are, how many are right, how many
        # should be.
        within = [
            (confidence >= low) & (confidence < high)
            for low, high in zip(LEVELS, (*LEVELS[1:], 2.0), strict=True)
        ]
        measured["levels"] = [
            [int(some.sum()), int((some & right).sum()), float(confidence[some].double().sum())]
            for some in within
        ]
    if growers.SAID in found.facts:
        said = found.facts[growers.SAID]
        measured |= {"said_share": said, "said_good": believed(len(found.pairs), said)}
    return measured


#: lower bounds of the intervals of confidence that are reported
LEVELS = (0.0, 0.5, 0.8, 0.95)
#: a run is called good if at least this share of its pairs is expected to be right: the default
#: `min_right` of POST /bootstrap
LEAST = 0.5


def believed(pairs: int, said: float) -> bool:
    """Whether the service accepts so many pairs with that estimated share of right ones."""
    return pairs >= FEWEST_JUDGED and said >= LEAST


def good(cell: Measured) -> bool:
    """Whether most of a run's pairs are right."""
    return bool(cell["found"] >= FEWEST_JUDGED and cell["right"] > cell["pairs"] / 2)
