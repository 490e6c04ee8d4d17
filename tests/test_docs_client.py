"""docs/how-to/python-client.md quotes benchmarks/results/client.json, to the digits shown."""

from __future__ import annotations

from pathlib import Path

from benchmarks.client import report_lines, tutorial_line
from benchmarks.common import RESULTS, read

PAGE = Path(__file__).parent.parent / "docs" / "how-to" / "python-client.md"
REPORT = read(RESULTS / "client.json")


def test_the_page_has_the_results() -> None:
    text = PAGE.read_text()
    assert "\n".join(report_lines(REPORT)) in text
    assert tutorial_line(REPORT) in text


def test_a_matrix_at_home_is_that_of_the_service_and_faster() -> None:
    for row in REPORT["at_home"]:
        bound = 1e-6 if row["method"] == "irp" else 1e-5
        assert row["largest_deviation"] < bound
        assert row["home_rows_per_s"] > row["npy_rows_per_s"]
