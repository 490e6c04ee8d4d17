"""docs/results/re-embedding.md quotes benchmarks/results/re_embedding.json, to the digits shown."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "results" / "re-embedding.md").read_text()
RESULTS = json.loads((ROOT / "benchmarks" / "results" / "re_embedding.json").read_text())
SHARES = ("0.01", "0.02", "0.05", "0.08", "0.1", "0.2")


def test_the_gains_of_each_choice() -> None:
    names = {
        "centrality": "centrality",
        "confidence, the least sure first": "confidence",
        "the truly worst first, which are not known": "worst",
        "random": "random",
    }
    for label, choice in names.items():
        gains = RESULTS["gains"][choice]
        row = " | ".join([label, *(f"{gains[share]:.3f}" for share in SHARES)])
        assert f"| {row} |" in PAGE


def test_the_errors_of_predictions() -> None:
    for choice, error in RESULTS["prediction_errors"].items():
        assert f"| {choice} | {error['mean']:.3f} | {error['largest']:.3f} |" in PAGE


def test_the_native_share_of_results() -> None:
    for cell in RESULTS["cells"]:
        mixing = cell["mixing"]
        shown = (
            f"| {cell['old']} -> {cell['new']} | {cell['anchors']:,} | "
            f"{mixing['native_share_of_results']:.2f} | {mixing['spread_native']:.3f} | "
            f"{mixing['spread_translated']:.3f} |"
        )
        assert shown in PAGE


def test_central_rows_gain_most_on_the_sentences() -> None:
    gains = [each["gains"] for each in RESULTS["sentences"]]
    for each in gains:
        others = max(each["confidence"]["0.1"], each["random"]["0.1"])
        assert each["centrality"]["0.1"] > others
    central, sure, random = (
        mean(each[choice]["0.1"] for each in gains)
        for choice in ("centrality", "confidence", "random")
    )
    sentence = (
        f"{central:.3f} at 10 % on average, against {sure:.3f} for confidence and {random:.3f}"
    )
    assert sentence.replace("0.", ".") in PAGE
