"""The table of a collection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.common import Table

COLUMNS = ("keep", "re-embed", "bridge", "translate", "cascade", "fuse")


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


def tables(name: str, section: Mapping[str, Any]) -> dict[str, Table]:
    """The table of a collection on docs/results/relevance.md."""
    columns = ["old -> new", "anchors", *COLUMNS]
    more = ["its weight", "fuse, judged (weight)"]
    return {name: [[*columns, *more], *cells(section)]}
