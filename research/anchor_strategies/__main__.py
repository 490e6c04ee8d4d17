"""Which items should be anchors?

    python -m research.anchor_strategies  # about 5 minutes

Writes research/results/anchor_strategies.json.

The strategies of Moschella et al. 2023, by how well their anchors translate.

Data: $ANCHORAGE_DATA/encoders (word spaces and text encoders made for this project) and
$ANCHORAGE_DATA/cifar10-embeddings.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from rich.console import Console

from benchmarks.common import DATA, Table, parser, show, write
from research.anchor_strategies import strategies
from research.common import RESULTS

STRATEGIES = ("uniform", "fps", "kmeans", "top1000", "top5000")


def main() -> None:
    """Measure, print and write."""
    options = parser(__doc__, RESULTS / "anchor_strategies.json").parse_args()
    if not (DATA / "encoders").is_dir():
        sys.exit(
            f"No folder `encoders` in {DATA}. Set ANCHORAGE_DATA; `--help` describes the data."
        )
    torch.set_num_threads(1)
    found = strategies.translation()
    tables = {"translation": of_translation(found)}
    show(Console(width=max(140, Console().width)), tables)
    write(options.json, tables, {"translation": found})


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
