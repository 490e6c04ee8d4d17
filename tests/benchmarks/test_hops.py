"""What the decision on model hosts quotes from the benchmark of hops."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_decision_quotes_the_report():
    rows = json.loads((ROOT / "benchmarks/results/hops.json").read_text())["rows"]
    text = (ROOT / "docs/decisions/0056-model-hosts.md").read_text()
    quoted = [f"{row['per_s']:,.0f}" for row in rows if row["threads"] == 1]
    assert len(quoted) == 9
    assert all(number in text for number in quoted)
