"""An application with the name of a store, through cutover, rollback and cutover."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.common import Missing
from benchmarks.name import STEPS, switches, world


@pytest.mark.long
def test_a_name_follows_its_store_in_every_process_also_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # a library warns without it
    try:
        with world(latency_s=0.02) as made:
            seen = switches(made)
    except Missing as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    assert seen.failures == []
    rows = [seen.row(number) for number in range(len(STEPS))]
    assert [row[-1] for row in rows] == ["0"] * len(STEPS), rows
    assert all(int(row[2].replace(",", "")) > 100 for row in rows), rows
