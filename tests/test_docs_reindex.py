"""docs/results/reindex.md quotes benchmarks/results/reindex.json."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.reindex import report

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "results" / "reindex.md"


def test_the_tables_are_those_of_the_results() -> None:
    runs = json.loads((ROOT / "benchmarks" / "results" / "reindex.json").read_text())
    assert report.fill_runs(PAGE.read_text(), runs) == PAGE.read_text()


def test_no_row_was_wrong() -> None:
    runs = json.loads((ROOT / "benchmarks" / "results" / "reindex.json").read_text())
    compared = [run[name] for run in runs.values() for name in report.COMPARISONS if name in run]
    assert compared
    for found in compared:
        for count in ("missing", "too_many", "different", "wrong"):
            assert found[count] == 0
