"""Waiting for what another thread or process does: generous, because machines are busy."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def until(ask: Callable[[], Any], within_s: float = 60, *, every_s: float = 0.02) -> Any:
    """Ask until the answer is true; returns it. Raises AssertionError when it never is."""
    deadline = time.monotonic() + within_s
    while not (found := ask()):
        assert time.monotonic() < deadline, f"never true: {ask}"
        time.sleep(every_s)
    return found
