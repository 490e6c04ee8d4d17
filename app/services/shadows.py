"""Searches that wait for a quiet moment after the answers, and what was counted about them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping

from app.storage.queries.store_comparisons import Compared

log = logging.getLogger("anchorage.shadows")

#: most searches that wait, of all projects and of one; one runs
MAX_WAITING, MAX_OF_PROJECT = 8, 4


class Shadows:
    """Runs one thing after another on the event loop, which alone calls this object."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[str, Callable[[], Awaitable[None]]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._sums: dict[Compared, dict[str, float]] = {}

    def offer(self, work: Callable[[], Awaitable[None]], project: str) -> bool:
        """Run this after what waits already; return False, and drop it, if too much waits."""
        of_project = sum(each == project for each, _ in self._waiting)
        if len(self._waiting) >= MAX_WAITING or of_project >= MAX_OF_PROJECT:
            return False
        self._waiting.append((project, work))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        return True

    def add(self, of: Compared, sums: Mapping[str, float]) -> None:
        """Count until the sums are taken to be stored."""
        of_pair = self._sums.setdefault(of, {})
        for name, value in sums.items():
            of_pair[name] = of_pair.get(name, 0.0) + value

    def take_sums(self) -> dict[Compared, dict[str, float]]:
        """Return what was counted since the last call."""
        sums, self._sums = self._sums, {}
        return sums

    def close(self) -> None:
        """Drop what waits."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while self._waiting:
            _, work = self._waiting.popleft()
            try:
                await work()
            except Exception:
                log.exception("a search after an answer failed")
