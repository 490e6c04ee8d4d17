"""What was measured: rounds and their spread, tables, slopes, targets, and the picture."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from app.demo.run import new_table

#: pause between two contestants, because idle threads of the one before spin for a while
SETTLE_S = 0.02


@dataclass(frozen=True)
class Rounds:
    """One number from every round."""

    values: Sequence[float]

    @property
    def median(self) -> float:
        """The median."""
        return float(np.median(self.values))

    @property
    def middle_half(self) -> tuple[float, float]:
        """The quartiles."""
        low, high = np.percentile(self.values, [25, 75])
        return float(low), float(high)

    def __str__(self) -> str:
        low, high = self.middle_half
        return (
            shown(self.median)
            if len(self.values) == 1
            else f"{shown(self.median)} ({shown(low)} - {shown(high)})"
        )


Cell = Rounds | float | int | str
Row = dict[str, Cell]


@dataclass
class Grid:
    """A table: rows by name or by size, cells by the heading of their column."""

    title: str
    corner: str
    rows: dict[int | str, Row]

    def printed(self) -> Table:
        """For a terminal."""
        columns = list(dict.fromkeys(column for row in self.rows.values() for column in row))
        table = new_table(self.title, (self.corner,), ())
        for column in columns:
            cells = [shown(row[column]) for row in self.rows.values() if column in row]
            # Headings may wrap, numbers not.
            table.add_column(column, justify="right", min_width=max(map(len, cells)))
        for name, row in self.rows.items():
            cells = [shown(row[each]) if each in row else "" for each in columns]
            table.add_row(f"{name:,}" if isinstance(name, int) else name, *cells)
        return table

    def slope(self, column: str, *, above: float = 0) -> float:
        """Slope of the column's logarithm over that of the size, by least squares."""
        points = [
            (size, _number(row[column]))
            for size, row in self.rows.items()
            if column in row and float(size) >= above
        ]
        sizes, numbers = np.log(np.array(points, float)).T
        return float(np.polyfit(sizes, numbers, 1)[0])


@dataclass(frozen=True)
class Target:
    """What a number should be: with `sense` 1 at least `wanted`, with -1 at most."""

    what: str
    value: float
    bound: float
    sense: int

    @property
    def met(self) -> bool:
        """Whether the target is met."""
        return self.sense * (self.value - self.bound) >= 0

    def __str__(self) -> str:
        wanted = f"target: {'at least' if self.sense > 0 else 'at most'} {shown(self.bound)}"
        return f"{self.what}: {shown(self.value)}; {wanted}, {'met' if self.met else 'NOT met'}"


@dataclass
class Section:
    """What one section measured."""

    note: str
    grids: list[Grid]
    slopes: dict[str, float] = field(default_factory=dict)
    targets: list[Target] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """For the report."""
        return {
            "note": self.note,
            "tables": {
                grid.title: {name: _cells(row) for name, row in grid.rows.items()}
                for grid in self.grids
            },
            "slopes": {name: _rounded(value) for name, value in self.slopes.items()},
            "targets": {
                each.what: {"value": _rounded(each.value), "target": each.bound, "met": each.met}
                for each in self.targets
            },
        }


def take_turns(
    contestants: Mapping[str, Callable[[], object]], rounds: int, *, warm: int = 2
) -> dict[str, Rounds]:
    """Milliseconds of each contestant, all of them in every round. The first rounds are
    warm-ups.
    """
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(-warm, rounds):
        for name, call in contestants.items():
            time.sleep(SETTLE_S)
            started = time.perf_counter()
            call()
            if turn >= 0:
                found[name].append((time.perf_counter() - started) * 1e3)
    return {name: Rounds(values) for name, values in found.items()}


def ratios(above: Rounds, below: Rounds) -> Rounds:
    """Ratios round by round."""
    return Rounds([a / b for a, b in zip(above.values, below.values, strict=True)])


def shown(value: Cell) -> str:
    """A number with three significant digits."""
    if isinstance(value, Rounds | str):
        return str(value)
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) < 0.01:
        return f"{value:.1e}"
    return f"{value:.{1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3}f}"


def _number(cell: Cell) -> float:
    return cell.median if isinstance(cell, Rounds) else float(cell)


def _cells(row: Row) -> dict[str, Any]:
    return {name: _as_json(cell) for name, cell in row.items()}


def _as_json(cell: Cell) -> Any:
    if isinstance(cell, Rounds):
        low, high = cell.middle_half
        return {
            "median": _rounded(cell.median),
            "middle_half": [_rounded(low), _rounded(high)],
            "rounds": len(cell.values),
        }
    return _rounded(cell) if isinstance(cell, float) else cell


def _rounded(value: float) -> float:
    """A number with four significant digits."""
    return float(f"{value:.4g}")


#: section -> its table, what grows, the column that is shown, and what that is
PANELS: dict[str, tuple[str, str, tuple[str, ...], str]] = {
    "n": (
        "More vectors",
        "vectors",
        ("one request, ms", "streamed npy, ms", "streamed Arrow, ms"),
        "ms",
    ),
    "k": (
        "More anchors",
        "anchors",
        ("fit graded, ms", "fit irp, ms", "fit procrustes, ms", "/translate, ms", "/relative, ms"),
        "ms",
    ),
    "d": (
        "More dimensions",
        "dimensions",
        (
            "fit graded, ms",
            "fit irp, ms",
            "fit procrustes, ms",
            "/translate, ms",
            "bare product, ms",
        ),
        "ms",
    ),
    "clients": (
        "More clients",
        "clients",
        ("Anchorage, requests/s", "empty route, requests/s"),
        "requests/s",
    ),
}


def _ticks(sizes: Sequence[int]) -> tuple[list[int], list[str]]:
    """A tick for each size, and labels for the largest and for those far enough apart to read."""
    labels: dict[int, str] = {}
    for size in sorted(sizes, reverse=True):
        apart = min((np.log(other / size) for other in labels), default=np.inf)
        if apart >= np.log(max(sizes) / min(sizes)) / 8:
            labels[size] = f"{size:,}"
    return list(sizes), [labels.get(size, "") for size in sizes]


def draw(sections: Mapping[str, Any], path: Path) -> None:
    """Draw with logarithmic axes. Bars are the middle half of the rounds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8), layout="constrained")
    for panel, (name, (start, grows, columns, unit)) in zip(
        figure.subplots(2, 2).flat, PANELS.items(), strict=True
    ):
        tables = sections.get(name, {}).get("tables", {})
        rows: dict[str, Any] = next(
            (rows for title, rows in tables.items() if title.startswith(start)), {}
        )
        for column in columns:
            points = [(int(size), row[column]) for size, row in rows.items() if column in row]
            if not points:
                continue
            sizes = [size for size, _ in points]
            medians = np.array([cell["median"] for _, cell in points])
            halves = np.array([cell["middle_half"] for _, cell in points]).T
            panel.errorbar(
                sizes,
                medians,
                yerr=np.abs(halves - medians),
                marker="o",
                markersize=4,
                capsize=2,
                label=column.rpartition(",")[0],
            )
        panel.set(xscale="log", yscale="log", xlabel=grows, ylabel=unit, title=start)
        panel.set_xticks(*_ticks([int(size) for size in rows]))
        panel.xaxis.minorticks_off()
        panel.grid(visible=True, which="major", color="0.9")
        if rows:
            panel.legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=110)
