"""Tables for a terminal: retrieval and stitching, with the rows that the paper prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from app.demo.run import new_table
from benchmarks.bootstrap.report import page
from benchmarks.bootstrap.report.summaries import Section
from research.bootstrap import paper_tables

SHORT = {"jaccard": "Jaccard", "mrr": "MRR", "cosine": "cosine", "accuracy": "accuracy", "f1": "F1"}


def of_rows(section: Section) -> Iterator[Table]:
    """A table for each place: forth and back, and unseen items where there are any."""
    for place, rows in section["places"].items():
        columns = list(
            dict.fromkeys(
                (way, figure)
                for row in rows.values()
                for way in row
                if way.startswith(("forth", "back"))
                for figure in row[way]
                if not (way.endswith("unseen") and figure == "cosine")
            )
        )
        shown = new_table(
            f"{place}: forth and back",
            ("anchors of", "seeds", "pairs, read by"),
            ("draws", "pairs", "right", "s", *(_heading(way, figure) for way, figure in columns)),
        )
        for row in rows.values():
            figures = (_figure(row.get(way, {}).get(figure)) for way, figure in columns)
            shown.add_row(row["method"], str(row["seeds"] or ""), row["read"], *_run(row), *figures)
        for name, printed in _paper(place, columns):
            shown.add_row(name, "", "", "", "", "", "", *printed, style="dim")
        yield shown


def _heading(way: str, figure: str) -> str:
    direction, _, unseen = way.partition(", ")
    arrow = "→" if direction == "forth" else "←"
    return f"{arrow} {SHORT[figure]}" + (f"\n{unseen}" if unseen else "")


def _run(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    pairs = f"{row['pairs']:,.0f}" if "pairs" in row else ""
    right = f"{row['right']:.2f}" if "right" in row else ""
    spent = f"{row['grow_seconds']:.0f}" if "grow_seconds" in row else ""
    return str(row["draws"]), pairs, right, spent


def _figure(value: Mapping[str, float | None] | None) -> str:
    if value is None:
        return ""
    return f"{value['mean']:.3f}" + (
        "" if value["std"] is None else f" ±{value['std']:.3f}".replace("0.", ".")
    )


def _paper(place: str, columns: list[tuple[str, str]]) -> Iterator[tuple[str, list[str]]]:
    """The paper's rows of retrieval."""
    if not any(figure == "mrr" for _, figure in columns):
        return
    for name, forth, back in page.printed(paper_tables.TABLES, place):
        of = {"forth": forth, "back": back}
        figures = (of[way][figure] if way in of else None for way, figure in columns)
        shown = [
            "" if pair is None else f"{pair[0]:.2f} ±{pair[1]:.2f}".replace("±0.", "±.")
            for pair in figures
        ]
        yield f"the paper: {name}", shown
