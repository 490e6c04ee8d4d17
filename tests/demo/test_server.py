"""The start of a service in a process of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.demo import DemoError, server


def test_a_slow_start_says_so_and_its_end_names_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(server, "START_TIMEOUT_S", 0.4)
    monkeypatch.setattr(os, "getloadavg", lambda: (2.0 * (os.cpu_count() or 1), 0, 0))
    (log := tmp_path / "server.log").write_text("the last line")
    client, process = httpx2.Client(base_url="http://127.0.0.1:1"), subprocess.Popen(["true"])
    monkeypatch.setattr(process, "poll", lambda: None)  # as one that goes on
    with process, pytest.raises(DemoError, match="not answered in time") as failed:
        server.wait_until_ready(client, process, log)
    assert str(failed.value).endswith(f"{log}:\nthe last line")
    assert "still starts (0 s, on a machine with 2.0 times the work" in capsys.readouterr().err
