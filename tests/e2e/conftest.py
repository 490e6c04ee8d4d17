"""Real servers, in processes of their own, behind real sockets."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults.deployment import Api


class Server(Api):
    """`anchorage serve` with these settings and the folder, on a port of its own."""

    def __init__(
        self, folder: Path, environment: Mapping[str, str] | None = None, **settings: Any
    ) -> None:
        others = {name: each for name, each in os.environ.items() if "ANCHORAGE_" not in name}
        own = {"data_dir": folder, "threads": 1, **settings}
        given = {f"ANCHORAGE_{name.upper()}": str(value) for name, value in own.items()}
        super().__init__(0, folder, {**others, **given, **(environment or {})})
        self.folder, self.log = folder, folder / f"{self.url.rpartition(':')[2]}.log"

    def start(self) -> None:
        super().start()
        self.wait_ready()

    def stop(self) -> int:
        """Send SIGTERM and wait for the end; returns the exit status."""
        self.signal(signal.SIGTERM)
        return self._process.wait(timeout=60)


@pytest.fixture
def serve_process(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Start a server of this test's own; it is gone at the end, whatever happens."""
    with ExitStack() as stack:

        def start(**settings: Any) -> Server:
            server = Server(tmp_path, **settings)
            stack.callback(server.kill)
            server.start()
            return server

        yield start


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server for all tests."""
    server = Server(tmp_path_factory.mktemp("live"))
    server.start()
    yield server
    server.kill()
