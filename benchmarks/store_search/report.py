"""The tables of docs/results/stores.md."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

from benchmarks.common import Table


def tables(found: Any) -> dict[str, Table]:
    """nDCG@10 of each store and pair, and times of single queries."""
    return {"before": _before(found["cells"]), "times": _times(found["times"])}


def _before(cells: Sequence[Any]) -> Table:
    groups: dict[tuple[str, str, str], list[Any]] = {}
    for cell in cells:
        groups.setdefault((cell["store"], cell["source"], cell["target"]), []).append(cell)
    rows = [["store", "pair", "search", "search, exact"]]
    for (store, source, target), some in groups.items():
        means = (mean(cell[key] for cell in some) for key in ("search", "search, exact"))
        rows.append([store, f"{source} -> {target}", *map(_three, means)])
    return rows


def _times(times: Sequence[Any]) -> Table:
    rows = [["store", "search", "p50", "p99", "steps, p50"]]
    for cell in times:
        for what, label in (("own", "its own, by the old encoder"), ("cascade", "cascade")):
            steps = (f"{name} {value:.1f}" for name, value in cell[what]["steps_p50_ms"].items())
            numbers = (f"{cell[what][each]:.1f}" for each in ("p50_ms", "p99_ms"))
            rows.append([cell["store"], label, *numbers, ", ".join(steps)])
    return rows


def _three(value: float) -> str:
    """Three decimals without the leading zero, as on the other pages."""
    return f"{value:.3f}".removeprefix("0")
