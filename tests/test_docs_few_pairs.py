"""docs/results/few-pairs.md and low-overlap.md quote their reports, to the digits shown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
FEW = json.loads((RESULTS / "few.json").read_text())
LOW = json.loads((RESULTS / "low_overlap.json").read_text())["cells"]
FEW_PAGE = (ROOT / "docs" / "results" / "few-pairs.md").read_text()
LOW_PAGE = (ROOT / "docs" / "results" / "low-overlap.md").read_text()
PAIRS = ("use -> minilm", "use -> e5", "e5 -> minilm")
SECTIONS = {
    "sentences": (("0", "2,000", "20,000"), ("recall", "mrr")),
    "cranfield": (("0", "own", "20,000"), ("ndcg_10", "recall")),
}


def cell(section: str, pair: str, anchors: int, unpaired: str) -> Mapping[str, Any] | None:
    cells: Mapping[str, Mapping[str, Any]] = FEW[section]["cells"]
    return cells.get(f"{pair}, {anchors} anchors, {unpaired} unpaired")


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("anchors", [15, 30, 100, 300, 1_000])
def test_the_table_of_few_anchors(section: str, pair: str, anchors: int) -> None:
    columns, measures = SECTIONS[section]
    found = [cell(section, pair, anchors, column) for column in columns]
    shown = [
        "" if each is None else " / ".join(f"{each[m]:.3f}" for m in measures) for each in found
    ]
    assert f"| {pair} | {anchors:,} | {' | '.join(shown)} |" in FEW_PAGE


def test_the_references_and_the_verdicts_of_held_out_anchors() -> None:
    values = FEW["cranfield"]["ndcg_10"]
    assert "use {use:.3f}, e5 {e5:.3f}, minilm {minilm:.3f}".format(**values) in FEW_PAGE
    judged = [
        (each, FEW[section]["cells"][name.rpartition(", ")[0] + ", 0 unpaired"])
        for section in SECTIONS
        for name, each in FEW[section]["cells"].items()
        if "taken" in each
    ]
    taken = [both for both in judged if both[0]["taken"] == 1]
    assert f"took the unpaired vectors in {len(taken)} of {len(judged)} cells" in FEW_PAGE
    assert all(each["recall"] > alone["recall"] for each, alone in taken)


@pytest.mark.parametrize("pools", LOW)
def test_the_table_of_low_overlap(pools: str) -> None:
    draws = LOW[pools].values()
    cells = [
        ", ".join(f"{each['right']} of {each['pairs']}" for each in draws),
        ", ".join(f"{each['right'] / each['common']:.2f}" for each in draws),
        ", ".join(f"{each['estimate']:.2f}" for each in draws),
        ", ".join("accepted" if each["accepted"] else "refused" for each in draws),
        ", ".join(f"{each['scored']:.2f}" if "scored" in each else "-" for each in draws),
        ", ".join(f"{each['decoys']:.2f}" if "decoys" in each else "-" for each in draws),
    ]
    assert f"| {pools} | {' | '.join(cells)} |" in LOW_PAGE


def test_no_accepted_run_of_low_overlap_is_mostly_wrong() -> None:
    runs = [each for draws in LOW.values() for each in draws.values()]
    assert all(each["right"] > each["pairs"] / 2 for each in runs if each["accepted"])
