"""The tables of docs/results/bootstrap.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.common import Table

#: numbers of seeds, as counts.py has them
COUNTS = ("0", "3", "5", "10", "15", "25", "50")
#: shares of items that the pools have in common, as strangers.py names them
COMMON = ("75%", "50%", "25%", "10%", "0%")
HONESTY = ("runs", "good", "said_good", "bad_called_good", "good_called_bad")
#: sections whose runs have estimates, and what their pools are
POOLS = {"counts": "the same items", "strangers": "partly or not the same"}

Sections = Mapping[str, Any]


def of_report(sections: Sections) -> dict[str, Table]:
    """The tables of the sections that are measured."""
    found: dict[str, Table] = {}
    if "counts" in sections:
        found["seeds"] = _seeds(sections["counts"]["cases"])
    if any(name in sections for name in POOLS):
        found["estimates"] = _estimates(sections)
    if "strangers" in sections:
        found["common"] = _common(sections["strangers"]["kinds"])
    if "swapped" in sections:
        found["wrong-seeds"] = _wrong_seeds(sections["swapped"]["places"])
    return found


def _counted(row: Mapping[str, Any] | None) -> str:
    """The share of right pairs, and the runs with mostly right pairs, of all draws."""
    return "" if row is None else f"{row['share']['mean']:.2f} ({row['good']}/{row['draws']})"


def _seeds(cases: Mapping[str, Any]) -> Table:
    """Self-learning by the number of seeds."""
    table = [["pools", "no seeds", *COUNTS[1:]]]
    for case, methods in cases.items():
        own = [_counted(methods.get("self-learning", {}).get(count)) for count in COUNTS]
        table.append([case, *own])
    return table


def _estimates(sections: Sections) -> Table:
    """How often the estimate of each method is right about a run."""
    columns = ["pools", "method", "runs", "good", "called good"]
    table = [[*columns, "bad, called good", "good, called bad", "error"]]
    for section, title in POOLS.items():
        for method, row in sections.get(section, {}).get("honesty", {}).items():
            counted = [str(row[name]) for name in HONESTY]
            table.append([title, method, *counted, f"{row['share_error']:.3f}"])
    return table


def _common(kinds: Mapping[str, Any]) -> Table:
    """The true and the estimated share of right pairs, by the share of items in common."""
    table = [["pools", *(f"{share} in common" for share in COMMON)]]
    for place in dict.fromkeys(kind.partition(": ")[0] for kind in kinds if "in common" in kind):
        shown = (kinds.get(f"{place}: {share} in common") for share in COMMON)
        table.append(
            [
                place,
                *(
                    "" if row is None else f"{row['share']:.2f} / {row['said_share']:.2f}"
                    for row in shown
                ),
            ]
        )
    return table


def _wrong_seeds(places: Mapping[str, Any]) -> Table:
    """How many wrong seeds are named."""
    table = [["pools", "wrong seeds", "named", "right ones named", "share of right pairs"]]
    for place, row in places.items():
        counted = [str(row[name]) for name in ("wrong", "named", "accused")]
        table.append([place, *counted, f"{row['share']:.2f}"])
    return table
