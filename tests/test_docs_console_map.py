"""docs/results/console-map.md quotes benchmarks/results/console_map.json, to the digits shown."""

from __future__ import annotations

from pathlib import Path

from benchmarks.common import RESULTS, read
from benchmarks.console_map import ITEMS, report_lines

PAGE = Path(__file__).parent.parent / "docs" / "results" / "console-map.md"
REPORT = read(RESULTS / "console_map.json")


def test_the_table_is_that_of_the_results() -> None:
    assert "\n".join(report_lines(REPORT)) in PAGE.read_text()


def test_the_page_chooses_a_way_that_is_smooth() -> None:
    chosen = [row for row in REPORT["rows"] if row["asked"] == "chosen"]
    assert len(chosen) == 2
    for row in chosen:
        assert row["items"] == ITEMS
        assert row["drawn_per_s"] > 30
