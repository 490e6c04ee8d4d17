"""Which items should be anchors?

    python -m research.anchor_strategies                     # about 5 minutes
    python -m research.anchor_strategies --only translation  # one section; the other stays

Writes research/results/anchor_strategies.json.

paper        how similar relative spaces are: Moschella et al. 2023, Tables 7 and 8, next to theirs
translation  the same strategies, by how well their anchors translate

Data: $ANCHORAGE_DATA/encoders (word spaces and text encoders made for this project) and
$ANCHORAGE_DATA/cifar10-embeddings.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from rich.console import Console

from benchmarks.common import DATA, Table, parser, show, write
from research.anchor_strategies import strategies
from research.common import RESULTS

SECTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "paper": strategies.tables,
    "translation": strategies.translation,
}
STRATEGIES = ("uniform", "fps", "kmeans", "top1000", "top5000")
#: the measures of the paper's tables
MEASURES = ("jaccard", "mrr", "cosine")


def main() -> None:
    """Measure the chosen sections, print and write."""
    arguments = parser(__doc__, RESULTS / "anchor_strategies.json")
    arguments.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    options = arguments.parse_args()
    if not (DATA / "encoders").is_dir():
        sys.exit(
            f"No folder `encoders` in {DATA}. Set ANCHORAGE_DATA; `--help` describes the data."
        )
    torch.set_num_threads(1)
    console = Console(width=max(140, Console().width))
    for name in options.only:
        found = SECTIONS[name]()
        tables = {name: of_paper(found) if name == "paper" else of_translation(found)}
        show(console, tables)
        write(options.json, tables, {name: found})


def of_paper(found: Mapping[str, Any]) -> Table:
    """Jaccard, MRR and cosine of each direction, and the paper's where it has one."""
    table = [["data, direction", "anchors", "Jaccard / MRR / cosine", "the paper"]]
    for data, directions in found.items():
        for direction, rows in directions.items():
            for name, row in rows.items():
                paper = row.get("paper")
                printed = " / ".join(f"{paper[each]:.2f}" for each in MEASURES) if paper else "-"
                table.append([f"{data}, {direction}", name, _shown(row, *MEASURES), printed])
    return table


def of_translation(found: Mapping[str, Any]) -> Table:
    """Recall and MRR of each strategy."""
    return [["data, anchors", *STRATEGIES]] + [
        [
            f"{data}, {size}",
            *(_shown(rows[name], "recall", "mrr") if name in rows else "-" for name in STRATEGIES),
        ]
        for data, sizes in found.items()
        for size, rows in sizes.items()
    ]


def _shown(row: Mapping[str, Any], *names: str) -> str:
    return " / ".join(f"{row[name]['mean']:.3f}" for name in names)


if __name__ == "__main__":
    main()
