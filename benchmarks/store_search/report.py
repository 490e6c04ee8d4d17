"""The tables of benchmarks/results/store_search.json, on a terminal and on the page of results."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

from rich.console import Console
from rich.table import Table

OUTCOMES = (
    "true: accepted",
    "true: unknown",
    "true: misnamed",
    "other: found",
    "other: misnamed",
    "other: unknown",
    "other: accepted",
)

HEADS = {
    "before": ("store", "pair", "search", "search, exact", "/rescore, exact candidates"),
    "times": ("store", "search", "p50", "p99", "steps, p50"),
    "half": ("pair", "rows with a native vector", "search", "raw merge"),
    "spaces": ("data", *OUTCOMES),
}


def show(console: Console, section: str, found: Any) -> None:
    """Print the tables of a section."""
    if found is None:
        return
    for name in ("before", "times") if section == "before" else (section,):
        table = Table(*HEADS[name])
        for row in rows_of(name, found):
            table.add_row(*row)
        console.print(table)


def rows_of(name: str, found: Any) -> list[tuple[str, ...]]:
    """The cells of a table."""
    return {"before": before, "times": times, "half": half, "spaces": spaces}[name](found)


def page_rows(name: str, found: Any) -> list[str]:
    """The same as lines of Markdown."""
    return [f"| {' | '.join(row)} |" for row in rows_of(name, found)]


def before(found: Any) -> list[tuple[str, ...]]:
    groups: dict[tuple[str, str, str], list[Any]] = {}
    for cell in found["cells"]:
        groups.setdefault((cell["store"], cell["source"], cell["target"]), []).append(cell)
    return [
        (
            store,
            f"{source} -> {target}",
            *(three(average(cells, each)) for each in ("search", "search, exact", "rescore")),
        )
        for (store, source, target), cells in groups.items()
    ]


def times(found: Any) -> list[tuple[str, ...]]:
    rows = []
    for cell in found["times"]:
        for what, label in (("own", "its own, by the old encoder"), ("cascade", "cascade")):
            steps = ", ".join(
                f"{name} {value:.1f}" for name, value in cell[what]["steps_p50_ms"].items()
            )
            numbers = (f"{cell[what][each]:.1f}" for each in ("p50_ms", "p99_ms"))
            rows.append((cell["store"], label, *numbers, steps))
    return rows


def half(found: Any) -> list[tuple[str, ...]]:
    return [
        (
            f"{cell['source']} -> {cell['target']}",
            f"{cell['share']:.0%}",
            three(cell["search"]),
            three(cell["raw merge"]),
        )
        for cell in found["cells"]
    ]


def spaces(found: Any) -> list[tuple[str, ...]]:
    return [(row["data"], *(str(row.get(each, 0)) for each in OUTCOMES)) for row in found]


def average(cells: Sequence[Any], key: str) -> float:
    return float(mean(cell[key] for cell in cells))


def three(value: float) -> str:
    """Three decimals without the leading zero, as on the other pages."""
    return f"{value:.3f}".removeprefix("0")
