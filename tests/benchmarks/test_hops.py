"""What the decision on model hosts quotes from the benchmark of hops."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
DECISIONS = ROOT / "docs/decisions"
REPORT = json.loads((ROOT / "benchmarks/results/hops.json").read_text())


def test_the_decision_quotes_the_report():
    rows = REPORT["rows"]
    text = (DECISIONS / "0056-model-hosts.md").read_text()
    quoted = [f"{row['per_s']:,.0f}" for row in rows if row["threads"] == 1]
    assert len(quoted) == 12
    assert all(number in text for number in quoted)


def test_the_decision_on_translations_quotes_the_report():
    text = (DECISIONS / "0057-translations-on-a-gpu.md").read_text()
    [hop] = [
        row["per_s"]
        for row in REPORT["rows"]
        if (row["way"], row["message"], row["threads"]) == ("unix socket", "4,096 vectors", 1)
    ]
    quoted = [f"{hop:.0f} times a second", *map(str, REPORT["products_per_s"].values())]
    assert all(number in text for number in quoted)
