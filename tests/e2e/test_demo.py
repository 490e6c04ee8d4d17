"""`anchorage demo` as a user runs it."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.waiting import slack


def test_a_table_moves_to_the_new_model_while_an_application_uses_it() -> None:
    command = [sys.executable, "-m", "app.cli", "demo"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240 * slack(), check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    old, new = done.stdout.split("the new model, in the old index:")
    assert "card_swallowed" not in old
    assert new.count("card_swallowed") == 3
    assert "verified   rows, payloads, sample, index" in new
    searches, written = re.findall(r"application: (\d+) searches and (\d+) new rows", new)[0]
    assert int(searches) > int(written) > 0
