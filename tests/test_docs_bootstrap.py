"""The tables of README.md and docs/results/bootstrap.md are those of benchmarks/results/bootstrap.json."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
#: what writes the tables, and needs nothing else of the benchmark
PAGE = runpy.run_path(str(ROOT / "benchmarks/bootstrap/page.py"))
SHOWN = [path.relative_to(ROOT) for path in PAGE["PAGES"]]


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return json.loads((ROOT / "benchmarks/results/bootstrap.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def test_every_table_has_its_place():
    texts = "".join((ROOT / path).read_text(encoding="utf-8") for path in SHOWN)
    assert sorted(found["name"] for found in PAGE["BLOCK"].finditer(texts)) == sorted(
        PAGE["BLOCKS"]
    )


@pytest.mark.parametrize("path", SHOWN, ids=str)
def test_the_tables_of_a_page_are_those_of_the_results(path, report):
    text = (ROOT / path).read_text(encoding="utf-8")
    assert text == PAGE["filled"](text, report), "python benchmarks/bootstrap.py --page writes them"


def test_a_row_says_what_its_columns_say():
    """By hand: what writes the pages would not find columns of its own that are exchanged."""
    told = {
        "runs": 9,
        "good": 5,
        "said_good": 4,
        "right": 0.875,
        "bad_called_good": 1,
        "good_called_bad": 2,
    }
    told["share_error"] = 0.0625
    swapped = {
        "draws": 5,
        "wrong": 10,
        "named": 9,
        "accused": 1,
        "pairs": 1234.4,
        "share": 0.75,
        "said_share": 0.5,
    }
    sections = {
        "counts": {
            "honesty": {"self-learning": told},
            "more": {"5": {"refused": 3, "good_with_more": 2}},
        },
        "strangers": {"honesty": {}},
        "swapped": {"places": {"there": swapped}},
    }
    blocks = {
        name: PAGE["BLOCKS"][name]({"sections": sections}).splitlines()
        for name in ("honesty", "more", "swapped")
    }
    columns = "section | method | runs | good | called good | called what it is | bad called good | good called bad"
    assert blocks["honesty"] == [
        f"| {columns} | error of the share |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| counts | self-learning | 9 | 5 | 4 | 0.875 | 1 | 2 | 0.062 |",
    ]
    assert blocks["more"] == [
        "| seeds | refused | good with more |",
        "| --- | --- | --- |",
        "| 5 | 3 | 2 |",
    ]
    assert blocks["swapped"] == [
        "| pools | draws | wrong seeds | named | right ones accused | pairs | right | estimated |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        "| there | 5 | 10 | 9 | 1 | 1,234 | 0.75 | 0.50 |",
    ]


@pytest.mark.parametrize("name", PAGE["BLOCKS"])
def test_a_table_that_is_another_is_found_out(name, report):
    """A block is filled anew whatever stands there, and nothing beside it is touched."""
    text = f"before\n<!-- {name} -->\n| 0.999 | of another run |\n<!-- /{name} -->\nafter\n<!-- unknown -->\nx\n<!-- /unknown -->\n"
    made = PAGE["filled"](text, report)
    assert "another run" not in made
    assert made.startswith("before\n")
    assert made.endswith("\nafter\n<!-- unknown -->\nx\n<!-- /unknown -->\n")
    assert len(made.splitlines()) > 7
    assert PAGE["filled"](made, report) == made
