"""What can be recomputed, kept close: a bounded in-process cache keyed by content."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Value = TypeVar("Value")


class MemoryCache:
    """Least recently used out first, bounded in bytes. Requests for one missing key make it once."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.hits = 0
        self.misses = 0
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()
        self._turns: dict[Hashable, _Turn] = {}

    def get_or_make(self, key: Hashable, make: Callable[[], Value], size: Callable[[Value], int]) -> Value:
        """The cached value, or `make()`'s, kept when `size` of it fits; what `make` raises is not kept."""
        with self._lock:
            found, value = self._look_up(key)
            if found:
                self.hits += 1
                return value  # type: ignore[no-any-return]
            self.misses += 1
            turn = self._turns.setdefault(key, _Turn())
            turn.takers += 1
        try:
            with turn.lock:
                with self._lock:
                    found, value = self._look_up(key)
                if not found:
                    value = make()
                    self._keep(key, value, size(value))
                return value  # type: ignore[no-any-return]
        finally:
            with self._lock:
                turn.takers -= 1
                if turn.takers == 0:
                    del self._turns[key]

    def _look_up(self, key: Hashable) -> tuple[bool, Any]:
        entry = self._entries.get(key)
        if entry is None:
            return False, None
        self._entries.move_to_end(key)
        return True, entry[0]

    def _keep(self, key: Hashable, value: object, nbytes: int) -> None:
        if nbytes > self.limit_bytes:
            return
        with self._lock:
            self._entries[key] = (value, nbytes)
            self.used_bytes += nbytes
            while self.used_bytes > self.limit_bytes:
                _, (_, freed) = self._entries.popitem(last=False)
                self.used_bytes -= freed


class _Turn:
    """Whose turn it is to make one missing value, and how many wait or make."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.takers = 0
