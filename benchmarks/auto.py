"""Which method ranks relevant documents best: the graded map, or the kernel that `auto` takes?

    python -m benchmarks.auto [--draws 5]

Writes benchmarks/results/auto.json. `python -m benchmarks.judged --help` says how to get the
collections. Every ordered pair of encoders on each collection (on Cranfield also e5), by 100, 300
and 1,000 anchors: the nDCG@10 of cascades and of `translate` by the graded map and by the kernel.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import permutations
from statistics import mean

import torch
from rich.console import Console
from torch import Tensor

from app.maths.relevance.options import SearchOption, SearchVectors, measure_options
from app.maths.relevance.ranking_metrics import Judgements
from benchmarks.cloze import ANCHORS, COLLECTIONS, MAX_SHARE, collection_vectors, translated
from benchmarks.common import RESULTS, Missing, Table, parser, show, write
from benchmarks.judged import judgements_of, load

ENCODERS = ("use", "static", "minilm")
OPTIONS: tuple[SearchOption, ...] = ("cascade", "translate")
METHODS = ("graded", "kernel")

#: documents and queries
Vectors = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Cell:
    """Mean nDCG@10 over draws, by method and option."""

    collection: str
    source: str
    target: str
    anchors: int
    methods: Mapping[str, Mapping[SearchOption, float]]


@dataclass(frozen=True, eq=False)
class JudgedPair:
    """An ordered pair of encoders on a judged collection."""

    collection: str
    source: str
    target: str
    judged: Judgements
    old: Vectors
    new: Vectors


def judged_pairs(
    names: Sequence[str], encoders: Sequence[str], console: Console
) -> Iterator[JudgedPair]:
    """Every ordered pair on each collection, on Cranfield also with e5. Raises Missing."""
    for name in names:
        texts = load(name)
        judged = judgements_of(texts)
        known = [*encoders, *(["e5"] if name == "cranfield" else [])]
        sides = {each: collection_vectors(texts, each) for each in known}
        for source, target in permutations(sides, 2):
            yield JudgedPair(name, source, target, judged, sides[source], sides[target])
        console.print(f"{name} is measured")


def measure(
    judged: Judgements, old: Vectors, new: Vectors, anchors: int, draws: int
) -> dict[str, dict[SearchOption, float]]:
    """Means over draws."""
    values: dict[tuple[str, SearchOption], list[float]] = {}
    for draw in range(draws):
        generator = torch.Generator().manual_seed(100 + draw)
        rows = torch.randperm(judged.size, generator=generator)[:anchors]
        for name in METHODS:
            for option, value in _ndcg(judged, old, new, rows, name).items():
                values.setdefault((name, option), []).append(value)
    return {name: {option: mean(values[name, option]) for option in OPTIONS} for name in METHODS}


def _ndcg(
    judged: Judgements, old: Vectors, new: Vectors, rows: Tensor, method: str
) -> dict[SearchOption, float]:
    """NDCG@10 by option."""
    x, y = old[0][rows], new[0][rows]
    forward, back = translated(x, y, old[0], method), translated(y, x, new[1], method)
    found = measure_options(
        SearchVectors(old[1], old[0], new[1], None, back, forward),
        judged,
        weights=(0.1,),
        default_weight=0.1,
    )
    return {option: float(found.options[option][:, 0].mean()) for option in OPTIONS}


def loss_table(cells: Sequence[Cell]) -> Table:
    """How far each method is below the better of the two, cell by cell."""
    table = [["anchors", "option", "method", "cells", "mean", "worst cell", "below -.01"]]
    for anchors in ANCHORS:
        some = [cell for cell in cells if cell.anchors == anchors]
        for option in OPTIONS if some else ():
            for name in METHODS:
                lost = [
                    cell.methods[name][option] - max(cell.methods[f][option] for f in METHODS)
                    for cell in some
                ]
                row = [f"{anchors:,}", option, name, str(len(lost)), f"{mean(lost):+.3f}"]
                table.append([*row, f"{min(lost):+.3f}", str(sum(each < -0.01 for each in lost))])
    return table


def main() -> None:
    """Measure, print and write."""
    command = parser(__doc__, RESULTS / "auto.json")
    command.add_argument("--draws", type=int, default=5, help="draws of anchors")
    command.add_argument("--encoders", default=",".join(ENCODERS))
    command.add_argument("--collections", default=",".join(COLLECTIONS))
    options = command.parse_args()
    torch.set_num_threads(1)
    console = Console(width=max(160, Console().width))
    cells: list[Cell] = []
    try:
        names, encoders = options.collections.split(","), options.encoders.split(",")
        for pair in judged_pairs(names, encoders, console):
            for anchors in ANCHORS:
                if anchors <= MAX_SHARE * pair.judged.size:
                    found = measure(pair.judged, pair.old, pair.new, anchors, options.draws)
                    place = pair.collection, pair.source, pair.target
                    cells.append(Cell(*place, anchors, found))
    except Missing as error:
        sys.exit(str(error))
    tables = {"auto": loss_table(cells)}
    show(console, tables)
    write(options.json, tables, {"cells": [asdict(cell) for cell in cells]})


if __name__ == "__main__":
    main()
