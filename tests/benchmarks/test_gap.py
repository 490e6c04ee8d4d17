"""The page on the gap quotes its benchmark, and an anchor's sentences are its own."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.gap.data import sentences

ROOT = Path(__file__).parents[2]


def test_the_page_quotes_every_lever() -> None:
    text = (ROOT / "docs" / "results" / "gap.md").read_text()
    report = json.loads((ROOT / "benchmarks" / "results" / "gap.json").read_text())
    for name, row in report["levers"].items():
        figures = [f"{row['ndcg'][pair]:.3f}" for pair in row["recovered"]]
        figures += [f"{value:.2f}" for value in row["recovered"].values()]
        assert f"| {name} | {' | '.join(figures)} | {row['mean']:.3f} |" in text.splitlines()
    for encoder, value in report["native"].items():
        assert f"{encoder} {value:.3f}" in text


def test_sentences_are_different_and_have_four_words_or_more() -> None:
    text = "a wing in a stream .. a wing in a stream . too short . lift of 3.5 at a span ."
    assert sentences(text) == ["a wing in a stream .", "lift of 3.5 at a span ."]
