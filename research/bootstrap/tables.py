"""Tables of retrieval and stitching, with the rows that the paper prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.common import Table
from research.bootstrap import paper_tables

SHORT = {"jaccard": "Jaccard", "mrr": "MRR", "cosine": "cosine"}
#: the tables of the paper with rows like a place's, and what follows the name of a row
WORDS = {"1 and 4": "", "5": ", FastText's anchors optimised"}
IMAGES = {"7": ""}
PRINTED = {
    "all words, w2v -> fasttext": WORDS,
    "all words, googlenews -> fasttext": WORDS,
    "CIFAR-10, V1 1.0 -> SqueezeNet": IMAGES,
    "CIFAR-10, V2 -> SqueezeNet": IMAGES,
}

#: the ways of a row, with the figures of each
Columns = list[tuple[str, str]]


def of_report(sections: Mapping[str, Any]) -> dict[str, Table]:
    """A table for each place of each section: both ways, and unseen items if any."""
    return {
        f"{name}: {place}": _of_place(place, rows)
        for name, section in sections.items()
        for place, rows in section["places"].items()
    }


def _of_place(place: str, rows: Mapping[str, Any]) -> Table:
    columns = list(
        dict.fromkeys(
            (way, figure)
            for row in rows.values()
            for way in row
            if way.startswith(("forth", "back"))
            for figure in row[way]
        )
    )
    headings = [f"{way}, {SHORT[figure]}" for way, figure in columns]
    table = [["anchors of", "seeds", "pairs, read by", "draws", "pairs", "right", *headings]]
    for row in rows.values():
        pairs = f"{row['pairs']:,.0f}" if "pairs" in row else ""
        right = f"{row['right']:.2f}" if "right" in row else ""
        start = [row["method"], str(row["seeds"] or ""), row["read"], str(row["draws"])]
        figures = [_figure(row.get(way, {}).get(figure)) for way, figure in columns]
        table.append([*start, pairs, right, *figures])
    return table + [[f"the paper: {name}", *[""] * 5, *row] for name, row in _paper(place, columns)]


def _figure(value: Mapping[str, float | None] | None) -> str:
    if value is None:
        return ""
    return f"{value['mean']:.3f}" + ("" if value["std"] is None else f" ±{value['std']:.3f}")


def _paper(place: str, columns: Columns) -> Iterator[tuple[str, list[str]]]:
    """The paper's rows of retrieval."""
    for number, more in PRINTED.get(place, {}).items():
        for name, ways in paper_tables.TABLES[number]["rows"].items():
            (first, forth), (_, back) = ways.items()
            # The paper's first way is our way back where it begins with what ours ends with.
            turned = first.split(" -> ")[0] == place.rsplit(" -> ", maxsplit=1)[-1]
            printed = {"forth": back if turned else forth, "back": forth if turned else back}
            figures = (printed[way][figure] if way in printed else None for way, figure in columns)
            shown = ["" if pair is None else f"{pair[0]:.2f} ±{pair[1]:.2f}" for pair in figures]
            yield name + more, shown
