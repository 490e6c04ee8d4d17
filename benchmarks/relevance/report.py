"""The table of a collection, and the targets."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean
from typing import Any

from benchmarks.common import Table

COLUMNS = ("keep", "re-embed", "bridge", "translate", "cascade", "fuse")

#: largest distance of cascade from translate
CASCADE = 0.005
#: largest loss of fuse against keep in a cell, and least mean gain where the new encoder is better
LOSS, GAIN = 0.005, 0.02


def cells(section: Mapping[str, Any]) -> list[list[str]]:
    """The rows of the table of a collection."""
    return [
        [
            f"{cell['source']} -> {cell['target']}",
            f"{cell['anchors']:,}",
            *(f"{cell[name]:.3f}" for name in COLUMNS),
            f"{cell['weight']:.2f}",
            f"{cell['fuse, judged']:.3f} ({cell['weight, judged']:.2f})",
        ]
        for cell in section["cells"]
    ]


def targets(section: Mapping[str, Any]) -> list[tuple[str, float, bool]]:
    """What was estimated, the worst number found, and whether it holds."""
    cells = section["cells"]
    better = [cell for cell in cells if cell["re-embed"] > cell["keep"]]
    cascade = max(abs(cell["cascade"] - cell["translate"]) for cell in cells)
    loss = min(cell["fuse"] - cell["keep"] for cell in cells)
    gain = mean(cell["fuse"] - cell["keep"] for cell in better)
    return [
        (f"cascade within {CASCADE} of translate in every cell", cascade, cascade <= CASCADE),
        (f"fuse at most {LOSS} below keep in every cell", loss, loss >= -LOSS),
        (
            f"fuse {GAIN} above keep, mean of {len(better)} cells with a better new encoder",
            gain,
            gain >= GAIN,
        ),
    ]


def tables(name: str, section: Mapping[str, Any]) -> dict[str, Table]:
    """The tables of a collection on docs/results/relevance.md."""
    columns = ["old -> new", "anchors", *COLUMNS]
    more = ["its weight", "fuse, judged (weight)"]
    rows = [
        [target, f"{found:+.4f}", "yes" if holds else "**no**"]
        for target, found, holds in targets(section)
    ]
    return {
        name: [[*columns, *more], *cells(section)],
        f"{name}-targets": [["target", "found", "met"], *rows],
    }
