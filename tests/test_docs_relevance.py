"""docs/results/relevance.md quotes benchmarks/results/relevance.json, to the digits shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.relevance import report

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "results" / "relevance.md"


def sections() -> dict[str, Any]:
    results = ROOT / "benchmarks" / "results" / "relevance.json"
    return json.loads(results.read_text())["sections"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["cranfield", "debtags"])
def test_the_tables_are_those_of_the_results(name):
    text = PAGE.read_text()
    section = sections()[name]
    assert len(section["cells"]) == 18
    assert [row for row in report.page_rows(section) if row not in text] == []
    assert [row for row in report.target_rows(section) if row not in text] == []


def test_the_average_of_a_cell_is_that_of_its_draws():
    for section in sections().values():
        for cell in section["cells"]:
            assert len(cell["draws"]) == section["draws"]
            for option in ("bridge", "cascade", "fuse", "translate"):
                mean = sum(draw[option] for draw in cell["draws"]) / len(cell["draws"])
                assert cell[option] == pytest.approx(mean, abs=2e-4)
