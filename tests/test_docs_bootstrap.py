"""The tables of README.md and docs/bootstrap-measured.md are those of benchmarks/results/bootstrap.json."""

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
    assert sorted(found["name"] for found in PAGE["BLOCK"].finditer(texts)) == sorted(PAGE["BLOCKS"])


@pytest.mark.parametrize("path", SHOWN, ids=str)
def test_the_tables_of_a_page_are_those_of_the_results(path, report):
    text = (ROOT / path).read_text(encoding="utf-8")
    assert text == PAGE["filled"](text, report), "python benchmarks/bootstrap.py --page writes them"


@pytest.mark.parametrize("name", PAGE["BLOCKS"])
def test_a_table_that_is_another_is_found_out(name, report):
    """A block is filled anew whatever stands there, and nothing beside it is touched."""
    text = (
        f"before\n<!-- {name} -->\n| 0.999 | of another run |\n<!-- /{name} -->\nafter\n<!-- unknown -->\nx\n<!-- /unknown -->\n"
    )
    made = PAGE["filled"](text, report)
    assert "another run" not in made
    assert made.startswith("before\n")
    assert made.endswith("\nafter\n<!-- unknown -->\nx\n<!-- /unknown -->\n")
    assert len(made.splitlines()) > 7
    assert PAGE["filled"](made, report) == made
