"""The table of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.common import Table

COLUMNS = [
    "store",
    "server",
    "own bulk insert",
    "sweep",
    "share of the insert",
    "scroll",
    "write",
    "merge and index, s",
    "own index, s",
    "cutover, s",
    "pause, ms",
    "rollback, s",
    "pause, ms",
    "search, ms",
    "cascade, ms",
    "native, ms",
    "recall@10",
    "rows changed",
]


def cells(result: Mapping[str, Any]) -> list[str]:
    """Return one row of the table: rows/s unless the column says another unit.

    Times of searches are p50 / p99.
    """
    seconds, rows = result["seconds"], result["rows"]
    parts = {name: seconds[name] for name in ("scroll", "translate", "write")}
    insert, sweep = rows / seconds["insert"], rows / sum(parts.values())
    changed = [
        result[name]
        for name in ("rows_missing", "rows_extra", "payloads_changed", "vectors_changed")
    ]
    switches = [
        f"{seconds['cutover']:.2f}",
        f"{1000 * result['cutover_pause_s']:.0f}",
        f"{seconds['rollback']:.2f}",
        f"{1000 * result['rollback_pause_s']:.0f}",
    ]
    searches = [result["searches"][name] for name in ("search", "cascade", "native")]
    return [
        result["store"],
        result["server"],
        f"{insert:,.0f}",
        f"{sweep:,.0f}",
        f"{sweep / insert:.0%}".replace("%", " %"),
        f"{rows / parts['scroll']:,.0f}",
        f"{rows / parts['write']:,.0f}",
        f"{seconds['build']:.2f}",
        f"{seconds['index']:.2f}" if result["index_apart"] else "",
        *switches,
        *(f"{each['p50_ms']:.0f} / {each['p99_ms']:.0f}" for each in searches),
        f"{result['recall']:.3f}",
        f"{sum(changed) + result['different']}",
    ]


def merge(known: Table, row: list[str], labels: Sequence[str]) -> Table:
    """Return the table with one store's row replaced or added, in the order of `labels`.

    A table with other columns is started anew.
    """
    kept = {each[0]: each for each in known[1:]} if known[:1] == [COLUMNS] else {}
    kept[row[0]] = row
    return [COLUMNS, *(kept[label] for label in labels if label in kept)]
