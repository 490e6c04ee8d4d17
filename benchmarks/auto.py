"""Does `auto` choose the method that ranks relevant documents best?

    python -m benchmarks.auto [--draws 5]

Writes benchmarks/results/auto.json. `python -m benchmarks.judged --help` says how to get the
collections. Every ordered pair of encoders on each collection (on Cranfield also e5), by 100, 300
and 1,000 anchors: the nDCG@10 of cascades and of `translate` by the graded map, by the kernel, and
by what `auto` chooses from the anchors. The last table has other ways of scoring anchors' own rows,
which were not adopted: by translations of a fit that did not see them, and by native vectors.
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

from app.maths.geometry.space import fit_space
from app.maths.quality.crossfit import hold_out
from app.maths.quality.selection import choose_method
from app.maths.relevance.options import SearchOption, SearchVectors, measure_options
from app.maths.relevance.ranking_metrics import Judgements
from app.maths.translators import methods
from app.maths.translators.translator import apply
from benchmarks.cloze import ANCHORS, COLLECTIONS, MAX_SHARE, collection_vectors
from benchmarks.common import RESULTS, Missing, Table, parser, show, write
from benchmarks.judged import judgements_of, load

ENCODERS = ("use", "static", "minilm")
OPTIONS: tuple[SearchOption, ...] = ("cascade", "translate")
FIXED = ("graded", "kernel")
OWN_ROWS = ("as others", "unseen", "native")

Fit = tuple[str, methods.Options]
#: documents and queries
Vectors = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Cell:
    """Mean nDCG@10 over draws: by method and option, and by how anchors' own rows are scored."""

    collection: str
    source: str
    target: str
    anchors: int
    chosen: Sequence[str]
    methods: Mapping[str, Mapping[SearchOption, float]]
    own_rows: Mapping[str, float]


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
) -> tuple[list[str], dict[str, dict[SearchOption, float]], dict[str, float]]:
    """The chosen methods, and means over draws."""
    chosen: list[str] = []
    values: dict[tuple[str, SearchOption], list[float]] = {}
    own_rows: dict[str, list[float]] = {name: [] for name in OWN_ROWS}
    for draw in range(draws):
        generator = torch.Generator().manual_seed(100 + draw)
        rows = torch.randperm(judged.size, generator=generator)[:anchors]
        x, y = old[0][rows].double(), new[0][rows].double()
        choice = choose_method(x, y)
        chosen.append(choice.method)
        fits: dict[str, Fit] = {name: (name, _defaults(name, anchors)) for name in FIXED}
        found = {name: _ndcg(judged, old, new, rows, fit) for name, fit in fits.items()}
        auto = choice.method, choice.options
        same = next((name for name, fit in fits.items() if fit == auto), None)
        found["auto"] = found[same] if same else _ndcg(judged, old, new, rows, auto)
        for name, by_option in found.items():
            for option in OPTIONS:
                values.setdefault((name, option), []).append(by_option[option])
        own_rows["as others"].append(found["kernel"]["cascade"])
        held = hold_out(*fits["kernel"][:1], x, y, fits["kernel"][1], folds=10)
        assert held is not None
        for name, replaced in (("unseen", held.translated), ("native", y)):
            other = _ndcg(judged, old, new, rows, fits["kernel"], replaced.float())
            own_rows[name].append(other["cascade"])
    means = {
        name: {option: mean(values[name, option]) for option in OPTIONS}
        for name in (*FIXED, "auto")
    }
    return chosen, means, {name: mean(each) for name, each in own_rows.items()}


def _defaults(method: str, anchors: int) -> methods.Options:
    return methods.resolve(method, {}, anchors=anchors)


def _ndcg(
    judged: Judgements,
    old: Vectors,
    new: Vectors,
    rows: Tensor,
    fit: Fit,
    replaced: Tensor | None = None,
) -> dict[SearchOption, float]:
    """NDCG@10 by option; with other vectors (k, d) in the place of the anchors' own rows."""
    method, options = fit
    x, y = fit_space(old[0][rows]), fit_space(new[0][rows])
    forward = apply(methods.fit(method, x, y, options), old[0]).vectors.float()
    back = apply(methods.fit(method, y, x, options), new[1]).vectors.float()
    if replaced is not None:
        forward = forward.clone()
        forward[rows] = replaced
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
            for name in (*FIXED, "auto"):
                lost = [
                    cell.methods[name][option] - max(cell.methods[f][option] for f in FIXED)
                    for cell in some
                ]
                row = [f"{anchors:,}", option, name, str(len(lost)), f"{mean(lost):+.3f}"]
                table.append([*row, f"{min(lost):+.3f}", str(sum(each < -0.01 for each in lost))])
    return table


def row_table(cells: Sequence[Cell]) -> Table:
    """NDCG@10 of the kernel's cascade by how anchors' own rows are scored."""
    table = [["collection", "anchors", *OWN_ROWS]]
    for name in dict.fromkeys(cell.collection for cell in cells):
        for anchors in ANCHORS:
            some = [c for c in cells if (c.collection, c.anchors) == (name, anchors)]
            if some:
                means = [f"{mean(c.own_rows[each] for c in some):.3f}" for each in OWN_ROWS]
                table.append([name, f"{anchors:,}", *means])
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
                    cells.append(Cell(*place, anchors, *found))
    except Missing as error:
        sys.exit(str(error))
    tables = {"auto": loss_table(cells), "own-rows": row_table(cells)}
    show(console, tables)
    write(options.json, tables, {"cells": [asdict(cell) for cell in cells]})


if __name__ == "__main__":
    main()
