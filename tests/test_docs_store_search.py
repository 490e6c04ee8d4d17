"""docs/results/store-search.md quotes benchmarks/results/store_search.json, to the digits shown."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.store_search import report

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "results" / "store-search.md"


def test_the_tables_are_those_of_the_results() -> None:
    results = ROOT / "benchmarks" / "results" / "store_search.json"
    sections = json.loads(results.read_text())["sections"]
    text = PAGE.read_text()
    assert sections
    for section, found in sections.items():
        for name in ("before", "times") if section == "before" else (section,):
            rows = report.page_rows(name, found)
            assert rows
            assert [row for row in rows if row not in text] == []


def test_a_half_migrated_store_is_never_worse_than_the_worse_end() -> None:
    results = ROOT / "benchmarks" / "results" / "store_search.json"
    cells = json.loads(results.read_text())["sections"]["half"]["cells"]
    pairs = {(cell["source"], cell["target"]) for cell in cells}
    assert pairs
    for pair in pairs:
        found = {
            cell["share"]: cell["search"]
            for cell in cells
            if (cell["source"], cell["target"]) == pair
        }
        assert set(found) == {0.0, 0.1, 0.5, 0.9, 1.0}
        assert min(found.values()) >= min(found[0.0], found[1.0]) - 0.01
