"""The tables of README.md and docs/results/bootstrap.md are those of the bootstrap benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.bootstrap.report import page

ROOT = Path(__file__).parent.parent
SHOWN = [path.relative_to(ROOT) for path in page.PAGES]


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return page.results()


def test_every_table_has_its_place():
    texts = "".join((ROOT / path).read_text(encoding="utf-8") for path in SHOWN)
    assert sorted(found["name"] for found in page.BLOCK.finditer(texts)) == sorted(page.BLOCKS)


@pytest.mark.parametrize("path", SHOWN, ids=str)
def test_the_tables_of_a_page_are_those_of_the_results(path, report):
    text = (ROOT / path).read_text(encoding="utf-8")
    assert text == page.filled(text, report), "python -m benchmarks.bootstrap --page writes them"


def test_a_row_says_what_its_columns_say():
    """By hand: what writes the pages would not find columns of its own that are exchanged."""
    told = {"runs": 9, "good": 5, "said_good": 4, "right": 0.875, "bad_called_good": 1, "good_called_bad": 2}
    told["share_error"] = 0.0625
    swapped = {"draws": 5, "wrong": 10, "named": 9, "accused": 1, "pairs": 1234.4, "share": 0.75, "said_share": 0.5}
    sections = {
        "counts": {"honesty": {"self-learning": told}, "more": {"5": {"refused": 3, "good_with_more": 2}}},
        "strangers": {"honesty": {}},
        "swapped": {"places": {"there": swapped}},
    }
    blocks = {name: page.BLOCKS[name]({"sections": sections}).splitlines() for name in ("honesty", "more", "swapped")}
    columns = "section | method | runs | good | called good | called what it is | bad called good | good called bad"
    assert blocks["honesty"] == [
        f"| {columns} | error of the share |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| counts | self-learning | 9 | 5 | 4 | 0.875 | 1 | 2 | 0.062 |",
    ]
    assert blocks["more"] == ["| seeds | refused | good with more |", "| --- | --- | --- |", "| 5 | 3 | 2 |"]
    assert blocks["swapped"] == [
        "| pools | draws | wrong seeds | named | right ones accused | pairs | right | estimated |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        "| there | 5 | 10 | 9 | 1 | 1,234 | 0.75 | 0.50 |",
    ]


@pytest.mark.parametrize("name", page.BLOCKS)
def test_a_table_that_is_another_is_found_out(name, report):
    """A block is filled anew whatever stands there, and nothing beside it is touched."""
    text = (
        f"before\n<!-- {name} -->\n| 0.999 | of another run |\n<!-- /{name} -->\nafter\n<!-- unknown -->\nx\n<!-- /unknown -->\n"
    )
    made = page.filled(text, report)
    assert "another run" not in made
    assert made.startswith("before\n")
    assert made.endswith("\nafter\n<!-- unknown -->\nx\n<!-- /unknown -->\n")
    assert len(made.splitlines()) > 7
    assert page.filled(made, report) == made
