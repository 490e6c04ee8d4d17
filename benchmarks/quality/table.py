"""From single measurements to means, spreads and shares; tables; the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from rich.table import Table

from app.demo.run import new_table
from app.maths.quality.metrics import bootstrap_interval
from benchmarks.common import read, rounded
from benchmarks.common import write as write_report
from benchmarks.quality.measure import Measured

#: of one task and number of anchors: (seed, (source, target)) -> what each method reached; methods
#: that refuse the pair are missing
Found = Mapping[tuple[int, tuple[str, str]], Mapping[str, Measured]]

FIGURES: dict[str, Callable[[Measured], float]] = {
    "cosine": lambda measured: measured.cosine,
    "recall": lambda measured: measured.recall,
    "recall_1": lambda measured: measured.recall_1,
    "mrr": lambda measured: measured.mrr,
}
HEADINGS = {"cosine": "cosine", "recall": "recall@10", "recall_1": "recall@1", "mrr": "MRR"}


@dataclass(frozen=True)
class Figure:
    """mean       over seeds of the mean over pairs
    std        between the seeds' means; None for one seed
    std_pairs  between the pairs' means over seeds; None for one pair
    """

    mean: float
    std: float | None
    std_pairs: float | None

    @classmethod
    def of(cls, values: Mapping[tuple[int, tuple[str, str]], float]) -> Figure:
        """A figure from one value for each seed and pair."""
        by_seed, by_pair = _means(values, 0), _means(values, 1)
        return cls(
            mean=mean(by_seed),
            std=stdev(by_seed) if len(by_seed) > 1 else None,
            std_pairs=stdev(by_pair) if len(by_pair) > 1 else None,
        )

    def __str__(self) -> str:
        return f"{self.mean:.3f}" + ("" if self.std is None else f" ± {self.std:.3f}")


@dataclass(frozen=True)
class Row:
    """One method: over how many pairs, its figures by name, and its recall in smaller indexes by
    their size.
    """

    pairs: int
    figures: Mapping[str, Figure]
    sized: Mapping[int, Figure]

    def columns(self) -> dict[str, Figure]:
        """The figures by the headings of a table."""
        figures = {HEADINGS[name]: figure for name, figure in self.figures.items()}
        return figures | {f"@10 of {size:,}": figure for size, figure in self.sized.items()}

    def as_json(self) -> dict[str, Any]:
        """For the report, with sizes as strings."""
        figures = {name: vars(figure) for name, figure in self.figures.items()}
        return {
            "pairs": self.pairs,
            **figures,
            "recall_sized": {str(size): vars(figure) for size, figure in self.sized.items()},
        }


@dataclass(frozen=True)
class Choice:
    """How well `auto` chose, over all pairs and seeds, compared with the fixed method with the best
    recall@10 on the same test items.

    That method is chosen with hindsight, so auto cannot be expected to reach it everywhere.
    own     share where the best one's recall@10 is not above the 95 % interval of auto's
    paired  share where the 95 % interval of their paired difference reaches down to 0; stricter
    best    share where no fixed method was better
    lost    mean over pairs and seeds of the best one's recall@10 minus auto's
    worst   the largest of these
    """

    own: float
    paired: float
    best: float
    lost: float
    worst: float


def summarise(found: Found) -> dict[str, Row]:
    """A row for each method, in the order in which they were first measured."""
    methods = dict.fromkeys(method for cell in found.values() for method in cell)
    return {
        method: _row({key: cell[method] for key, cell in found.items() if method in cell})
        for method in methods
    }


def choice(found: Found, auto: str, fixed: Sequence[str]) -> Choice:
    """`auto` compared with the best of `fixed`, cell by cell."""
    own, paired, lost = [], [], []
    for cell in found.values():
        best = max(
            (cell[method] for method in fixed if method in cell),
            key=lambda measured: measured.recall,
        )
        low, high = bootstrap_interval(
            torch.stack([best.recalls - cell[auto].recalls, cell[auto].recalls], dim=1)
        )
        own.append(float(best.recall <= float(high[1])))
        paired.append(float(float(low[0]) <= 0))
        lost.append(best.recall - cell[auto].recall)
    return Choice(
        own=mean(own),
        paired=mean(paired),
        best=mean(float(difference <= 0) for difference in lost),
        lost=mean(lost),
        worst=max(lost),
    )


def printed(title: str, rows: Mapping[str, Row]) -> Table:
    """For a terminal. The best mean of every column is bold, among the methods that served every
    pair.
    """
    columns = {method: row.columns() for method, row in rows.items()}
    headings = list(dict.fromkeys(heading for row in columns.values() for heading in row))
    most = max(row.pairs for row in rows.values())
    best = {
        heading: max(
            (columns[method][heading].mean for method, row in rows.items() if row.pairs == most),
            default=None,
        )
        for heading in headings
    }
    table = new_table(title, ("method",), (*headings, "pairs"))
    for method, row in rows.items():
        shown = []
        for heading, figure in columns[method].items():
            bold = row.pairs == most and figure.mean == best[heading]
            shown.append(f"[bold]{figure}[/bold]" if bold else str(figure))
        table.add_row(method, *shown, str(row.pairs))
    return table


def chosen(title: str, choices: Mapping[str, Choice]) -> Table:
    """How `auto` did: a row for each task and number of anchors."""
    columns = (
        "within own 95 %",
        "within paired 95 %",
        "at least as good",
        "recall@10 lost",
        "at worst",
    )
    table = new_table(title, ("task",), columns)
    for name, made in choices.items():
        shares = [f"{share:.0%}" for share in (made.own, made.paired, made.best)]
        table.add_row(name, *shares, f"{made.lost:+.4f}", f"{made.worst:+.4f}")
    return table


def write(path: Path, about: Mapping[str, Any], name: str, section: Mapping[str, Any]) -> None:
    """Write one section into the report; the other sections stay."""
    sections = read(path).get("sections", {}) | {name: section}
    write_report(path, rounded({**about, "sections": sections}, 5))


def _row(cells: Mapping[tuple[int, tuple[str, str]], Measured]) -> Row:
    sizes = sorted({size for measured in cells.values() for size in measured.sized})
    return Row(
        pairs=len({pair for _, pair in cells}),
        figures={
            name: Figure.of({key: of(measured) for key, measured in cells.items()})
            for name, of in FIGURES.items()
        },
        sized={
            size: Figure.of({key: measured.sized[size] for key, measured in cells.items()})
            for size in sizes
        },
    )


def _means(values: Mapping[tuple[int, tuple[str, str]], float], part: int) -> list[float]:
    """Means by seed (0) or by pair (1)."""
    groups: dict[Any, list[float]] = {}
    for key, value in values.items():
        groups.setdefault(key[part], []).append(value)
    return [mean(group) for group in groups.values()]
