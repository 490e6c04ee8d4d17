"""The paper's Tables 1, 4, 5 and 7: do the anchors that a method finds make relative vectors that
find each other?

Every set of anchors is measured twice: with relative vectors, as in the paper, and with the graded
translator fitted to it. The paper's optimisation aims for 300 anchors, so where a method finds
thousands the 300 most confident stand next to the 300 true ones. Items are those of the pools, as
in the paper, anchors and seeds among them, and, where there are any, items that no pool has.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.bootstrap import growers
from benchmarks.bootstrap.cells import Cell, Measured
from benchmarks.bootstrap.draws import ALL_WORDS, CASES, GT, OTHERS, Draw, draw
from research.bootstrap.protocol import Retrieved, graded, relative, retrieved, translated, unit

NAME = "retrieval"
PLACES = {
    case.name: case
    for case in (
        *ALL_WORDS.values(),
        OTHERS["CIFAR-10, V1 1.0 -> SqueezeNet"],
        CASES["CIFAR-10, V2 -> SqueezeNet"],
        CASES["Banking77, MiniLM -> static"],
        CASES["Banking77, minilm3 -> static"],
    )
}
#: rows that need no method
TRUE, SEED = "GT", "Seed"
COUNTS = (15, 25, 50)
#: methods that take a minute or more, and minutes with all words: fewer numbers of seeds, fewer
#: draws
Asked = dict[str, tuple[tuple[int, ...], int]]
SLOW: Asked = {"vecmap": ((15,), 2), "paper": ((15,), 2)}
SLOW_WORDS: Asked = {"vecmap": ((15,), 1), "paper": ((15,), 1)}
#: self-learning with all words takes four minutes where it fails
LEARNT_WORDS: Asked = {
    "all words, w2v -> fasttext": ((25,), 2),
    "all words, googlenews -> w2v": ((15, 25), 2),
    "all words, googlenews -> fasttext": ((25,), 1),
}
#: with all words, these run only between the paper's two kinds of encoders
SLOWEST = ("vecmap", "paper")
DRAWS, WORDS_DRAWS = 5, 2

#: which pairs are the anchors, and who uses them
BEST, EVERY, SOME_TRUE, ALL_TRUE, ALONE = (
    f"best {GT}",
    "all",
    f"{GT} true",
    "all true",
    "seeds alone",
)
RELATIVE, GRADED = "relative", "graded"


def cells(*, quick: bool, draws: int | None) -> Iterator[Cell]:
    """By case and draw, so that neighbours share what they load."""
    places = (
        [next(iter(ALL_WORDS)), "CIFAR-10, V2 -> SqueezeNet", "Banking77, MiniLM -> static"]
        if quick
        else list(PLACES)
    )
    for place in places:
        most = WORDS_DRAWS if place in ALL_WORDS else DRAWS
        for number in range(1 if quick else min(draws or most, most)):
            for method, counts in _asked(place, number, quick=quick).items():
                for count in counts[:1] if quick else counts:
                    yield Cell((NAME, place, method, count, number), measure)


def _asked(place: str, number: int, *, quick: bool) -> dict[str, tuple[int, ...]]:
    """The methods of a draw, and their numbers of seeds."""
    asked = {TRUE: (0,), SEED: COUNTS}
    slow = {**SLOW_WORDS, "self-learning": LEARNT_WORDS[place]} if place in ALL_WORDS else SLOW
    for method in growers.METHODS:
        counts, most = slow.get(method, (COUNTS, DRAWS))
        if number < most and not (
            place in ALL_WORDS and method in SLOWEST and (quick or place != next(iter(ALL_WORDS)))
        ):
            asked[method] = counts
    return asked


def measure(place: str, method: str, count: int, number: int) -> Measured:
    """All rows of one set of anchors, from the source to the target (forth) and back."""
    case = PLACES[place]
    drawn = draw(case, number)
    sets, told = anchors(method, drawn, count, number)
    rows = {}
    for name, pairs in sets.items():
        # All true pairs serve to compare the translator only, because no method is expected to find
        # more.
        for reader in (GRADED,) if name == ALL_TRUE else (RELATIVE, GRADED):
            rows[f"{name}, {reader}"] = read(reader, drawn, pairs)
    return told | {"rows": rows}


def anchors(
    method: str, drawn: Draw, count: int, number: int
) -> tuple[dict[str, Tensor], Measured]:
    """The sets of pairs (p, 2) that a method stands for, by name, and facts of its run."""
    if method == TRUE:
        return {SOME_TRUE: drawn.true(GT), ALL_TRUE: drawn.true()}, {}
    if method == SEED:
        return {ALONE: drawn.true(count)}, {}
    return _grown(method, drawn, count, number)


def _grown(method: str, drawn: Draw, count: int, number: int) -> tuple[dict[str, Tensor], Measured]:
    found = growers.grow(method, drawn.pools, drawn.seeds(count), number)
    # A method that finds nothing to fit to still has the seeds.
    sets = {BEST: growers.most_confident(found, GT) if len(found.pairs) > 1 else drawn.true(count)}
    if len(found.pairs) > GT:
        sets[EVERY] = found.pairs
    new = found.pairs[growers.beside_seeds(found, drawn.seeds(count))]
    told = {
        "pairs": len(found.pairs),
        "right": float(drawn.right(new).double().mean()) if len(new) else None,
    }
    return sets, told


def read(reader: str, drawn: Draw, pairs: Tensor) -> dict[str, dict[str, float]]:
    """The paper's measures both ways, of the pools' items and of unseen ones."""
    found = {}
    for way, side, turned in (("forth", drawn, pairs), ("back", drawn.flipped, pairs.flip(1))):
        ask = _by_relative if reader == RELATIVE else _by_translator
        found[way] = ask(side, turned, side.x, side.y, side.partner).as_json()
        if len(side.unseen_x):
            own = torch.arange(len(side.unseen_x))
            found[f"{way}, unseen"] = ask(side, turned, side.unseen_x, side.unseen_y, own).as_json()
    return found


def _by_relative(
    side: Draw, pairs: Tensor, queries: Tensor, index: Tensor, own: Tensor
) -> Retrieved:
    means = side.x.mean(dim=0), side.y.mean(dim=0)
    anchors_x, anchors_y = unit(side.x[pairs[:, 0]], means[0]), unit(side.y[pairs[:, 1]], means[1])
    return retrieved(
        relative(unit(queries, means[0]), anchors_x, unit(index, means[1]), anchors_y), own
    )


def _by_translator(
    side: Draw, pairs: Tensor, queries: Tensor, index: Tensor, own: Tensor
) -> Retrieved:
    translator = graded(side.x[pairs[:, 0]], side.y[pairs[:, 1]])
    return translated(translator, queries, index, side.y.mean(dim=0), own)
