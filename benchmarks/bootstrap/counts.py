"""How many pairs are accepted, how many of them are right, and is it known which runs failed? Against the number of seeds.

The seeds themselves are not counted. A run is good when more than half of its other pairs are right; one without any is not.
"""

from __future__ import annotations

from collections.abc import Iterator

import growers
import said
from cells import Cell, Measured
from draws import CASES, draw

NAME = "counts"
COUNTS = (3, 5, 10, 15, 25, 50)
DRAWS = 10
#: methods that take a minute or more at 3,000 items: fewer numbers of seeds, fewer draws; the 250 texts are asked about in full
SLOW: dict[str, tuple[tuple[int, ...], int]] = {
    "vecmap": ((5, 10, 15, 25), 2),
    "paper": ((15, 50), 1),
    "soft-plan": ((15, 50), 1),
}


def cells(*, quick: bool, draws: int | None) -> Iterator[Cell]:
    """By case and draw."""
    for name, case in CASES.items():
        if quick and name.split(",")[0] in {other.split(",")[0] for other in list(CASES)[: list(CASES).index(name)]}:
            continue
        for number in range(draws or (1 if quick else DRAWS)):
            for method in growers.METHODS:
                counts, most = (COUNTS, DRAWS) if case.items is None else SLOW.get(method, (COUNTS, DRAWS))
                if draws is None and number >= most:
                    continue
                for count in counts[-2:-1] if quick else counts:
                    yield Cell((NAME, name, method, count, number), measure, method)


def measure(name: str, method: str, count: int, number: int) -> Measured:
    """One run: what it found, what is right, what is said of it."""
    return judged(name, method, count, number, growers.UNCHANGED)


def judged(name: str, method: str, count: int, number: int, changes: growers.Changes) -> Measured:
    """The same with other settings."""
    drawn = draw(CASES[name], number)
    found, seconds = growers.grown(method, CASES[name], count, number, changes)
    new, confidence = found.pairs[count:], found.confidence[count:]
    right = drawn.right(new)
    measured: Measured = {
        "grow_seconds": seconds,
        "pairs": len(new),
        "right": int(right.sum()),
        "facts": dict(found.facts),
    }
    if len(new) and not bool(confidence.isnan().any()):
        measured["expected"] = float(confidence.double().mean())
        measured["brier"] = float((confidence - right.float()).square().double().mean())
        # Of pairs that are sure, how many are right, and how many are there?
        sure = confidence >= SURE
        measured["sure"], measured["sure_right"] = int(sure.sum()), int((sure & right).sum())
    if said.ESTIMATE is not None:
        told = said.ESTIMATE(drawn.pools, drawn.seeds(count), found, number)
        measured |= {"said_good": told.good, "said_share": told.share}
    return measured


#: a pair of at least this confidence is sure
SURE = 0.95


def good(cell: Measured) -> bool:
    """Whether most of a run's pairs are right."""
    return bool(cell["right"] > cell["pairs"] / 2)
