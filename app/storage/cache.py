"""What can be recomputed, kept close: a bounded in-process cache keyed by content."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Value = TypeVar("Value")


class MemoryCache:
    """Least recently used out first, bounded in bytes. Two requests for one missing key make it once."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.hits = 0
        self.misses = 0
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()
        self._making: dict[Hashable, threading.Lock] = {}

    def get_or_make(self, key: Hashable, make: Callable[[], Value], size: Callable[[Value], int]) -> Value:
        """The cached value, or `make()`'s, kept when `size` of it fits; what `make` raises is not kept."""
        with self._lock:
            found, value = self._look_up(key)
            if found:
                self.hits += 1
                return value  # type: ignore[no-any-return]
            self.misses += 1
            turn = self._making.setdefault(key, threading.Lock())
        with turn:
            try:
                with self._lock:
                    found, value = self._look_up(key)
                if not found:
                    value = make()
                    self._keep(key, value, size(value))
                return value  # type: ignore[no-any-return]
            finally:
                with self._lock:
                    self._making.pop(key, None)

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
