"""Limits how much heavy work runs at once, and how much waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore

from app.errors import Overloaded


class WorkSlots:
    """Work that keeps all cores busy: so many at once, so many waiting, and no more."""

    def __init__(self, what: str, at_once: int, waiting: int) -> None:
        self._busy = f"the server is {what} as many as it can"
        self._running = BoundedSemaphore(at_once)
        self._places = BoundedSemaphore(at_once + waiting)

    @contextmanager
    def take(self, wait_s: float | None) -> Iterator[None]:
        """A turn, after so long at most; None: however long it takes. Raises Overloaded."""
        # A worker's threads are few, and may wait for as long as it takes.
        if not self._places.acquire(blocking=wait_s is None):
            raise Overloaded(self._busy, retry_after_s=5)
        try:
            if not self._running.acquire(timeout=wait_s):
                raise Overloaded(self._busy, retry_after_s=5)
            try:
                yield
            finally:
                self._running.release()
        finally:
            self._places.release()
