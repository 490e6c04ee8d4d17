"""The table of the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COLUMNS = [
    "store",
    "own bulk insert",
    "sweep",
    "share of the insert",
    "scroll",
    "translate",
    "write",
    "merge and index, s",
    "own index, s",
    "cutover, s",
    "pause, ms",
    "rollback, s",
    "pause, ms",
    "recall@10",
    "rows changed",
]


def cells(result: Mapping[str, Any]) -> list[str]:
    """Return one row of the table: rows/s unless the column says another unit."""
    seconds, rows = result["seconds"], result["rows"]
    parts = [seconds[name] for name in ("scroll", "translate", "write")]
    rates = [rows / seconds["insert"], rows / sum(parts), *(rows / each for each in parts)]
    insert, sweep, scroll, translate, write = (f"{rate:,.0f}" for rate in rates)
    changed = [
        result[name]
        for name in ("rows_missing", "rows_extra", "payloads_changed", "vectors_changed")
    ]
    return [
        result["store"],
        insert,
        sweep,
        f"{rates[1] / rates[0]:.0%}".replace("%", " %"),
        scroll,
        translate,
        write,
        f"{seconds['build']:.2f}",
        f"{seconds['index']:.2f}" if result["index_apart"] else "",
        f"{seconds['cutover']:.2f}",
        f"{1000 * result['cutover_pause_s']:.0f}",
        f"{seconds['rollback']:.2f}",
        f"{1000 * result['rollback_pause_s']:.0f}",
        f"{result['recall']:.3f}",
        f"{sum(changed)}" if result["checksums_equal"] else "checksums differ",
    ]
