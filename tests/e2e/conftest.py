"""A real server, in a process of its own, behind a real socket."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.demo.client import Client, server


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """`anchorage serve` on a free port."""
    with server(tmp_path_factory.mktemp("live")) as client:
        yield client
