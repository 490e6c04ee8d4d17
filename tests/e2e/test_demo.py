"""`anchorage demo` as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import slack


@pytest.mark.long
def test_the_new_model_finds_more_in_the_old_index(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers.json"
    command = [sys.executable, "-m", "app.cli", "demo"]
    done = subprocess.run(
        [*command, "--json", str(numbers)],
        capture_output=True,
        text=True,
        timeout=240 * slack(),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    old, new = done.stdout.split("the new model, in the old index:")
    assert "card_swallowed" not in old
    assert new.count("card_swallowed") == 3
    results = json.loads(numbers.read_text())["results"]
    for option in ("fuse", "cascade", "native-cascade", "re-embed"):
        assert results[option]["over_keep"]["intervals"]["ndcg_10"][0] > 0.05
    assert results["native-cascade"]["ndcg_10"] > results["re-embed"]["ndcg_10"] - 0.01
