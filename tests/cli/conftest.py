"""A running service of a data folder, which commands find as they find `anchorage serve`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from app.cli import own_service
from app.cli.shared import lock_data_dir
from app.settings import Settings


@contextmanager
def running(settings: Settings) -> Iterator[None]:
    """Serve a data folder in this process."""
    with lock_data_dir(settings) as announce, own_service.run(settings, announce):
        yield


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """A command that serves sends logs to its own standard error, which is gone after it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
