"""Limits how much heavy work runs at once, and how much waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore

from app.errors import Overloaded


class WorkSlots:
    """Slots for one kind of work: `at_once` callers run, `waiting` more wait, others fail."""

    def __init__(self, what: str, at_once: int, waiting: int) -> None:
        self._busy = f"The server is busy: no further {what} can start now. Try again in 5 s."
        self._running = BoundedSemaphore(at_once)
        self._places = BoundedSemaphore(at_once + waiting)

    @contextmanager
    def take(self, wait_s: float | None) -> Iterator[None]:
        """Hold a slot, after waiting up to `wait_s`; None: without a limit. Raises Overloaded."""
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
