"""Real servers, in processes of their own, behind real sockets."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.demo.server import free_port, server, wait_until_ready


def other_variables() -> dict[str, str]:
    """The environment without our settings."""
    return {name: text for name, text in os.environ.items() if not name.startswith("ANCHORAGE_")}


class Process:
    """`anchorage serve` with these settings on a port of its own; `start()` starts it (again)."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.port = settings.pop("port", None) or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / f"{self.port}.log"
        folder.mkdir(exist_ok=True)
        self._settings = {"data_dir": folder, "threads": 1, "port": self.port, **settings}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, *, environment: dict[str, str] | None = None) -> Process:
        given = {f"ANCHORAGE_{name.upper()}": str(value) for name, value in self._settings.items()}
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "app.cli", "serve"],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**other_variables(), **given, **(environment or {})},
            )
        return self

    def ready(self) -> Process:
        """Wait until it is."""
        assert self._process is not None
        with httpx2.Client(base_url=self.url, timeout=30, trust_env=False) as http:
            wait_until_ready(http, self._process, self.log)
        return self

    def stop(self) -> int:
        """Send SIGTERM and wait for the end; returns the exit status."""
        self._process.terminate()
        return self._process.wait(timeout=60)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Describe a server of this test's own; it is gone at the end, whatever happens."""
    with ExitStack() as stack:

        def describe(**settings: Any) -> Process:
            made = Process(tmp_path / "data", **settings)
            stack.callback(made.close)
            return made

        yield describe


@pytest.fixture(scope="session")
def live_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server `live` keeps its data and its log."""
    return tmp_path_factory.mktemp("live")


@pytest.fixture(scope="session")
def live(live_folder: Path) -> Iterator[str]:
    """The address of `anchorage serve` on a free port."""
    with server(live_folder, free_port(), {**other_variables(), "ANCHORAGE_THREADS": "1"}) as url:
        yield url
