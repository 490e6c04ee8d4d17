"""Which items should be anchors, where should they come from, and how coarse may relative vectors
be?

    python -m research.anchor_strategies                   # about 5 minutes
    python -m research.anchor_strategies --only quantised  # some sections; the others stay

Writes research/results/anchor_strategies.json.

tables       how similar relative spaces are: Moschella et al. 2023, Tables 7 and 8, next to theirs
translation  the same strategies, by how well their anchors translate
domains      anchors from another data set than the items
quantised    relative vectors on a grid (`bits` of /relative), and the paper's clusters, Figure 7

Data: $ANCHORAGE_DATA/encoders (word spaces and text encoders made for this project) and
$ANCHORAGE_DATA/cifar10-embeddings.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from rich.console import Console

from app.demo.run import new_table
from benchmarks.common import DATA, merged, parser, read, significant, write
from research.anchor_strategies import domains, grids, strategies
from research.common import RESULTS

SECTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "tables": strategies.tables,
    "translation": strategies.translation,
    "domains": domains.measure,
    "quantised": grids.measure,
}


def main() -> None:
    """Measure the chosen sections; print and write each as it is done."""
    arguments = parser(__doc__, RESULTS / "anchor_strategies.json")
    arguments.add_argument(
        "--only",
        nargs="+",
        choices=SECTIONS,
        default=list(SECTIONS),
        help="measure only these sections",
    )
    options = arguments.parse_args()
    if not (DATA / "encoders").is_dir():
        sys.exit(
            f"No folder `encoders` in {DATA}. Set ANCHORAGE_DATA; `--help` describes the data."
        )
    torch.set_num_threads(1)
    console = Console(width=max(140, Console().width))
    for name in SECTIONS:
        if name in options.only:
            began = time.monotonic()
            section = significant(SECTIONS[name]())
            section["seconds"] = round(time.monotonic() - began)
            show(console, name, section)
            write(options.json, merged(read(options.json), name, section, list(SECTIONS)))


def show(console: Console, name: str, section: Mapping[str, Any]) -> None:
    for title, rows in _tables(section["tables"]):
        columns = [column for column in next(iter(rows.values())) if column != "paper"]
        table = new_table(
            f"{name}: {title}",
            ("",),
            tuple(column.replace("translated ", "moved ") for column in columns),
        )
        for row, numbers in rows.items():
            paper = numbers.get("paper", {})
            table.add_row(row, *(_shown(numbers[column], paper.get(column)) for column in columns))
        console.print(table)
    for bits, row in section.get("guarantee", {}).get("table", {}).items():
        console.print(bits, row, highlight=False)
    console.print(f"{section['note']}\n{name}: {section['seconds']} s\n", highlight=False)


def _tables(found: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each table of nested tables, by its full name."""
    for name, inner in found.items():
        deeper = next(iter(next(iter(inner.values())).values()))
        if "mean" in deeper:
            yield above + name, inner
        else:
            yield from _tables(inner, f"{above}{name}, ")


def _shown(number: Mapping[str, float], paper: float | None) -> str:
    shown = f"{number['mean']:.3f} ± {number['std']:.3f}"
    return shown if paper is None else f"{shown} (paper {paper:.2f})"


if __name__ == "__main__":
    main()
