"""What are 50 judged queries worth: as a weight, as a choice of the option, or as anchors?

    python -m benchmarks.labels [--draws 5]

Writes benchmarks/results/labels.json. `python -m benchmarks.judged --help` says how to get the
collections. Every ordered pair of encoders on the four collections with more than 60 queries, by
300 anchors and the kernel. 50 queries (half of fewer than 100) are known with their judgements;
nDCG@10 is measured on the others, and compared with keep.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean

import torch
from rich.console import Console
from torch import Tensor

from app.maths.relevance.fuse_weight import (
    choose_weight,
    default_weight,
    held_out_cosine,
    weights_with,
)
from app.maths.relevance.options import SearchMetrics, SearchOption, SearchVectors, measure_options
from app.maths.relevance.ranking_metrics import Judgements
from benchmarks.auto import ENCODERS, Vectors, judged_pairs
from benchmarks.cloze import translated
from benchmarks.common import RESULTS, Missing, Table, parser, show, write

COLLECTIONS = ("cranfield", "time", "pubmedqa", "xquad")
ANCHORS = 300
#: most of a collection that becomes anchors
MAX_SHARE = 0.6
JUDGED = 50
KNOWN: tuple[SearchOption, ...] = ("cascade", "translate", "re-embed")


@dataclass(frozen=True)
class Cell:
    """Mean gains over keep on the other queries, by what the judged ones are used for."""

    collection: str
    source: str
    target: str
    gains: Mapping[str, float]


def measure(
    judged: Judgements, old: Vectors, new: Vectors, weight: float, rows: Tensor, queries: Tensor
) -> SearchMetrics:
    """Options by the anchors `rows`, and the queries `queries` as more anchors."""
    x, y = (torch.cat([side[0][rows], side[1][queries]]) for side in (old, new))
    forward, back = translated(x, y, old[0], "kernel"), translated(y, x, new[1], "kernel")
    return measure_options(
        SearchVectors(old[1], old[0], new[1], new[0], back, forward),
        judged,
        weights=weights_with(weight),
        default_weight=weight,
    )


def gains_of(judged: Judgements, old: Vectors, new: Vectors, draw: int) -> dict[str, float]:
    """One draw of the anchors and of the judged queries."""
    generator = torch.Generator().manual_seed(100 + draw)
    count = min(ANCHORS, int(MAX_SHARE * judged.size))
    rows = torch.randperm(judged.size, generator=generator)[:count]
    order = torch.randperm(len(judged.rows), generator=generator)
    known = order[: min(JUDGED, len(order) // 2)]
    others = order[len(known) :]
    weight = default_weight(held_out_cosine(old[0][rows], new[0][rows]))
    plain = measure(judged, old, new, weight, rows, known[:0])
    more = measure(judged, old, new, weight, rows, judged.rows[known])
    fused = torch.stack([each[:, 0] for each in plain.fused], dim=1)
    usual = plain.weights.index(weight)
    chosen = choose_weight(fused[known], usual=usual)
    assert chosen is not None
    keep = plain.options["keep"][:, 0]
    options = {"keep": keep, "fuse": fused[:, usual]}
    options |= {name: plain.options[name][:, 0] for name in KNOWN}
    best = max(options, key=lambda name: float(options[name][known].mean()))
    without = max(options.keys() - {"re-embed"}, key=lambda n: float(options[n][known].mean()))
    by_use = {
        "no judgement: fuse by the default weight": options["fuse"],
        "50 choose the weight of fuse": fused[:, chosen[0]],
        "50 choose the option, none embeds texts": options[without],
        "50 choose the option": options[best],
        "no judgement: cascade": options["cascade"],
        "the 50 queries are anchors too: cascade": more.options["cascade"][:, 0],
    }
    return {name: float((values - keep)[others].mean()) for name, values in by_use.items()}


def use_table(cells: Sequence[Cell]) -> Table:
    """Mean gains over keep by collection, and the worst cell."""
    names = list(dict.fromkeys(cell.collection for cell in cells))
    table = [["use of 50 judged queries", *names, "mean", "worst cell"]]
    for use in cells[0].gains:
        by_name = [mean(c.gains[use] for c in cells if c.collection == name) for name in names]
        every = [cell.gains[use] for cell in cells]
        row = [f"{value:+.3f}" for value in (*by_name, mean(every), min(every))]
        table.append([use, *row])
    return table


def main() -> None:
    """Measure, print and write."""
    command = parser(__doc__, RESULTS / "labels.json")
    command.add_argument("--draws", type=int, default=5, help="draws of anchors and queries")
    command.add_argument("--collections", default=",".join(COLLECTIONS))
    options = command.parse_args()
    torch.set_num_threads(1)
    console = Console(width=max(160, Console().width))
    cells: list[Cell] = []
    try:
        for pair in judged_pairs(options.collections.split(","), ENCODERS, console):
            found: dict[str, list[float]] = defaultdict(list)
            for draw in range(options.draws):
                for use, gain in gains_of(pair.judged, pair.old, pair.new, draw).items():
                    found[use].append(gain)
            means = {use: mean(each) for use, each in found.items()}
            cells.append(Cell(pair.collection, pair.source, pair.target, means))
    except Missing as error:
        sys.exit(str(error))
    tables = {"uses": use_table(cells)}
    show(console, tables)
    write(options.json, tables, {"cells": [asdict(cell) for cell in cells]})


if __name__ == "__main__":
    main()
