"""The numbers of docs/results/bootstrap.md are those of benchmarks/results/bootstrap.json."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
#: the module that writes the page; it needs nothing else of the benchmark
PAGE = runpy.run_path(str(next(ROOT.glob("benchmarks/bootstrap/**/page.py"))))
WRITTEN = [path.relative_to(ROOT) for path in PAGE["PAGES"]]


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return PAGE["results"]()  # type: ignore[no-any-return]


def test_every_block_has_its_place():
    texts = "".join((ROOT / path).read_text(encoding="utf-8") for path in WRITTEN)
    found = sorted(match["name"] for match in PAGE["BLOCK"].finditer(texts))
    assert found == sorted(PAGE["BLOCKS"])


@pytest.mark.parametrize("path", WRITTEN, ids=str)
def test_the_page_shows_the_results(path, report):
    text = (ROOT / path).read_text(encoding="utf-8")
    assert text == PAGE["filled"](text, report), "run the benchmark with --page"


def test_the_page_can_be_read_in_a_few_minutes():
    words = [
        word
        for path in WRITTEN
        for word in (ROOT / path).read_text(encoding="utf-8").split()
        if word not in ("|", "---")
    ]
    assert len(words) <= 1_000


def test_each_column_shows_what_its_title_says():
    """Compares with numbers by hand, for the other tests cannot see two columns exchanged."""
    row = {"runs": 9, "good": 5, "said_good": 4, "bad_called_good": 1, "good_called_bad": 2}
    row["share_error"] = 0.0625
    wrong = {"wrong": 10, "named": 9, "accused": 1, "share": 0.75}
    kinds = {
        f"there: {share} in common": {"share": 0.5, "said_share": place / 10}
        for place, share in enumerate(("75%", "50%", "25%", "10%", "0%"))
    }
    run = {"finished": True, "run_seconds": 90, "above_bytes": 2**21, "right": 7, "pairs": 8}
    sections = {
        "counts": {"honesty": {"self-learning": row}},
        "strangers": {"honesty": {}, "kinds": kinds},
        "swapped": {"places": {"there": wrong}},
        "scale": {"runs": {"paper, 1000": run}},
    }
    shown = {
        name: PAGE["BLOCKS"][name]({"sections": sections}).splitlines()
        for name in ("estimates", "common", "wrong-seeds", "cost")
    }
    columns = "runs | good | called good | bad, called good | good, called bad | error"
    assert shown["estimates"][0] == f"| pools | method | {columns} |"
    assert shown["estimates"][2:] == [
        "| the same items | self-learning | 9 | 5 | 4 | 1 | 2 | 0.062 |"
    ]
    pairs = " | ".join(f"0.50 / {place / 10:.2f}" for place in range(5))
    assert shown["common"][2:] == [f"| there | {pairs} |"]
    assert shown["wrong-seeds"][0] == "The job names 9 of 10 wrong seeds, and 1 right ones."
    assert shown["cost"][0] == "| method | items | minutes | MiB | right pairs |"
    assert shown["cost"][2:] == ["| paper | 1,000 | 1.5 | 2 | 7 of 8 |"]


@pytest.mark.parametrize("name", PAGE["BLOCKS"])
def test_a_block_is_written_anew_and_nothing_beside_it(name, report):
    text = (
        f"before\n<!-- {name} -->\n| 0.999 | of another run |\n<!-- /{name} -->\nafter\n"
        "<!-- unknown -->\nx\n<!-- /unknown -->\n"
    )
    made = PAGE["filled"](text, report)
    assert "another run" not in made
    assert made.startswith("before\n")
    assert made.endswith("\nafter\n<!-- unknown -->\nx\n<!-- /unknown -->\n")
    assert len(made.splitlines()) > 6
    assert PAGE["filled"](made, report) == made
