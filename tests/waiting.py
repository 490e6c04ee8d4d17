"""Waiting for what another thread or process does, with deadlines that fit a busy machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LOAD = Path("/proc/loadavg")


def slack() -> float:
    """The factor of all deadlines: 1 on an idle machine, more when processes wait for a core.

    `ANCHORAGE_TEST_SLACK` multiplies it.
    """
    waiting = os.getloadavg()[0]
    # The average of a minute is late where a load begins; Linux also tells how many run now.
    if LOAD.exists():
        waiting = max(waiting, int(LOAD.read_text().split()[3].split("/")[0]))
    waiting /= os.cpu_count() or 1
    return float(os.environ.get("ANCHORAGE_TEST_SLACK", "1")) * max(1.0, 2 * waiting)


def until(condition: Callable[[], Any], within_s: float = 60, *, every_s: float = 0.02) -> Any:
    """Returns the first true value of the condition. Raises AssertionError if none came in time."""
    begun = time.monotonic()
    while not (found := condition()):
        assert time.monotonic() - begun < within_s * slack(), f"never true: {condition}"
        time.sleep(every_s)
    return found


class Stopwatch:
    """Measures how long something took, in seconds of an idle machine."""

    def __init__(self) -> None:
        self.begun = time.monotonic()

    @property
    def seconds(self) -> float:
        return (time.monotonic() - self.begun) / slack()
