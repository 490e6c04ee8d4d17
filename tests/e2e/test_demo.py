"""`anchorage demo` as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
def test_the_demo_runs_and_translation_beats_doing_nothing(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "app.cli",
        "demo",
        "--out",
        str(tmp_path),
        "--json",
        str(tmp_path / "numbers.json"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    nothing = numbers["mean"]["do nothing"]
    for method in ("irp", "irp-ridge", "graded", "procrustes", "ridge"):
        assert numbers["mean"][method]["recall"] > nothing["recall"] + 0.5
        assert numbers["mean"][method]["mrr"] > nothing["mrr"] + 0.5
    assert all(head["stitched"] > head["native"] - 0.1 for head in numbers["heads"])
    for name in ("recall", "cosine"):
        assert all(
            abs(row[f"estimated_{name}"] - row[f"measured_{name}"]) < 0.03
            for row in numbers["estimates"]
        )
    assert (tmp_path / "map.png").stat().st_size > 10_000
