"""Tables that are the same on a terminal and on the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import rich.table


@dataclass(frozen=True)
class Table:
    """A heading, the headings of the columns, and the cells; the first column is words."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def printed(self) -> rich.table.Table:
        """For a terminal."""
        table = rich.table.Table(title=self.title, title_justify="left")
        for place, column in enumerate(self.columns):
            table.add_column(column, justify="right" if place else "left")
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        """For a page."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value: float | None, digits: int = 3) -> str:
    """Three significant digits, and commas from a thousand on; None is a dash."""
    if value is None:
        return "-"
    text = f"{value:.{digits}g}"
    if abs(float(text)) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.1e}" if "e" in text else text


def mebibytes(value: int | None) -> str:
    """A number of bytes in MiB."""
    return "-" if value is None else f"{value / 2**20:,.0f} MiB"
