"""Which items should be anchors, from where, and how finely need relative vectors be written?

    python benchmarks/anchor_strategies.py                   # about 5 minutes on one core; writes results/anchor_strategies.json
    python benchmarks/anchor_strategies.py --only quantised  # some sections; the others' results stay in the JSON

tables       how alike relative spaces are: Moschella et al. 2023, Tables 7 and 8, beside theirs
translation  the same strategies by how well their anchors translate
domains      anchors from another data set than the items
quantised    relative vectors on a grid (`bits` of /relative), and the paper's clusters, Figure 7

Data: $ANCHORAGE_DATA/encoders (word spaces and text encoders of our own making) and $ANCHORAGE_DATA/cifar10-embeddings.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from app.demo.run import new_table
from research.anchor_strategies import domains, grids, strategies
from research.anchor_strategies.pools import DATA

RESULTS = Path(__file__).parents[1] / "results" / "anchor_strategies.json"
SECTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "tables": strategies.tables,
    "translation": strategies.translation,
    "domains": domains.measure,
    "quantised": grids.measure,
}


def main() -> None:
    """Measure the chosen sections; print and write each as it is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="these sections")
    options = parser.parse_args()
    if not (DATA / "encoders").is_dir():
        sys.exit(f"no encoders in {DATA}: see the head of this script for the data, or set ANCHORAGE_DATA")
    torch.set_num_threads(1)
    console = Console(width=max(140, Console().width))
    for name in SECTIONS:
        if name in options.only:
            began = time.monotonic()
            section = _rounded(SECTIONS[name]())
            section["seconds"] = round(time.monotonic() - began)
            show(console, name, section)
            write(name, section)


def show(console: Console, name: str, section: Mapping[str, Any]) -> None:
    for title, rows in _tables(section["tables"]):
        columns = [column for column in next(iter(rows.values())) if column != "paper"]
        table = new_table(f"{name}: {title}", ("",), tuple(column.replace("translated ", "moved ") for column in columns))
        for row, numbers in rows.items():
            paper = numbers.get("paper", {})
            table.add_row(row, *(_shown(numbers[column], paper.get(column)) for column in columns))
        console.print(table)
    for bits, row in section.get("guarantee", {}).get("table", {}).items():
        console.print(bits, row, highlight=False)
    console.print(f"{section['note']}\n{name}: {section['seconds']} s\n", highlight=False)


def _tables(found: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each table of a nest of them, by its whole name."""
    for name, inner in found.items():
        deeper = next(iter(next(iter(inner.values())).values()))
        if "mean" in deeper:
            yield above + name, inner
        else:
            yield from _tables(inner, f"{above}{name}, ")


def _shown(number: Mapping[str, float], paper: float | None) -> str:
    shown = f"{number['mean']:.3f} ± {number['std']:.3f}"
    return shown if paper is None else f"{shown} (paper {paper:.2f})"


def write(name: str, section: Mapping[str, Any]) -> None:
    """Put one section into the JSON, beside the others that are there."""
    report = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    sections = report | {name: section}
    RESULTS.write_text(json.dumps({key: sections[key] for key in SECTIONS if key in sections}, indent=1) + "\n")


def _rounded(value: Any) -> Any:
    """Four digits that matter, all the way down."""
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
