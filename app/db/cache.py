"""What a process remembers: values that can be made again, and the rows behind names.

Keys of values contain content hashes, so values never become stale. Redis may share them between
processes.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeVar

from app import __version__
from app.db.redis import RedisStore, TensorCodec
from app.errors import DatabaseUnavailable
from app.ops import metrics
from app.turns import SingleFlight

Value = TypeVar("Value")

Key = tuple[Hashable, ...]

#: how long an entry is used, counted from the start of its look-up
MEMORY_S = 0.5

#: the same while the database does not answer
AWAY_MEMORY_S = 60.0

#: most entries
MAX_NAMES = 10_000


class Cache:
    """A bounded memory cache, backed by Redis where Redis is configured.

    A process makes each value once, however many threads ask for it. A value with a `shared` codec
    is looked up in Redis first.
    """

    def __init__(self, limit_bytes: int, store: RedisStore | None = None) -> None:
        self.memory = MemoryCache(limit_bytes)
        self.store = store

    def close(self) -> None:
        if self.store is not None:
            self.store.close()

    def get_or_make(
        self,
        key: Key,
        make: Callable[[], Value],
        size: Callable[[Value], int],
        *,
        shared: TensorCodec[Value] | None = None,
    ) -> Value:
        """Return the cached value, or call `make` and cache its result if its `size` fits.

        key[0] names the kind of the value in metrics. Exceptions of `make` are not cached.
        """
        kind = str(key[0])
        missed = False

        def fetch() -> Value:
            nonlocal missed
            missed = True
            if shared is None or self.store is None:
                metrics.cache_outcome(kind, "made").inc()
                return make()
            return self.store.get_or_make(kind, _entry_key(key), make, shared)

        value = self.memory.get_or_make(key, fetch, size)
        if not missed:
            metrics.cache_outcome(kind, "memory").inc()
        else:
            metrics.CACHE_BYTES.set(self.memory.used_bytes)
        return value

    def find_shared(
        self, key: Key, size: Callable[[Value], int], shared: TensorCodec[Value]
    ) -> Value | None:
        """Return the value if it is in memory or Redis. Waits for no thread that makes it."""
        value: Value | None = self.find(key)
        if value is None and self.store is not None:
            value = self.store.find(str(key[0]), _entry_key(key), shared)
            if value is not None:
                self.memory.put(key, value, size(value))
        return value

    def find(self, key: Key) -> Any | None:
        """Return the value if it is in memory. Does no IO and waits for no other thread."""
        value = self.memory.find(key)
        if value is not None:
            metrics.cache_outcome(str(key[0]), "memory").inc()
        return value


def _entry_key(key: Key) -> bytes:
    # Another version of the service may compute a different value.
    return repr((__version__, key)).encode()


class MemoryCache:
    """An LRU cache bounded in bytes. Concurrent requests for a missing key make its value once."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        #: values with their sizes, the least recently used first
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()
        self._flight = SingleFlight()

    def get_or_make(
        self, key: Hashable, make: Callable[[], Value], size: Callable[[Value], int]
    ) -> Value:
        """Return the cached value, or call `make` and cache its result if its `size` fits."""

        def make_and_store() -> Value:
            if (entry := self._entry(key)) is not None:  # of a thread that was faster
                return entry[0]  # type: ignore[no-any-return]
            value = make()
            self.put(key, value, size(value))
            return value

        entry = self._entry(key)
        return self._flight.run(key, make_and_store) if entry is None else entry[0]

    def find(self, key: Hashable) -> Any | None:
        """Return the cached value, or None."""
        entry = self._entry(key)
        return None if entry is None else entry[0]

    def put(self, key: Hashable, value: object, nbytes: int) -> None:
        """Keep a value if it fits."""
        if nbytes > self.limit_bytes:
            return
        with self._lock:
            self.used_bytes += nbytes - self._entries.pop(key, (None, 0))[1]
            self._entries[key] = (value, nbytes)
            while self.used_bytes > self.limit_bytes:
                _, (_, freed) = self._entries.popitem(last=False)
                self.used_bytes -= freed

    def newest(self, count: int) -> dict[Any, Any]:
        """Return the values that were used last."""
        with self._lock:
            return {key: value for key, (value, _) in list(self._entries.items())[-count:]}

    def _entry(self, key: Hashable) -> tuple[Any, int] | None:
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
            return self._entries.get(key)


class NameKey(NamedTuple):
    """The key of an entry: project, kind and the names in the request."""

    project: str
    kind: str
    names: tuple[str | None, ...]


class NameCache:
    """The memory of this process. Values are small: rows and ids, not tensors.

    A value that has an attribute `until` is used up to that moment at most.

    away   returns whether the database does not answer now
    """

    def __init__(self, away: Callable[[], bool] = lambda: False) -> None:
        self._away = away
        #: the values, and when their look-ups began
        self._known: dict[NameKey, tuple[Any, float]] = {}
        self._changes = 0
        self._lock = threading.Lock()
        self._flight = SingleFlight()

    def find(self, name: NameKey) -> Any | None:
        """Return the entry, or None. Does no IO and waits for no other thread."""
        found = self._recall(name, MEMORY_S)
        return self._recall(name, AWAY_MEMORY_S) if found is None and self._away() else found

    def find_or(self, name: NameKey, look_up: Callable[[], Value]) -> Value:
        """Return the entry, or call `look_up` and remember its result. Exceptions are not cached.

        While the database does not answer, results of the last AWAY_MEMORY_S are used.
        """
        found: Any = self.find(name)
        if found is not None:
            return found  # type: ignore[no-any-return]
        changes = self._changes
        try:
            # Those who ask after `forget` do not share a look-up that began before it.
            return self._flight.run((name, changes), lambda: self._remember(name, changes, look_up))
        except DatabaseUnavailable:
            remembered: Value | None = self._recall(name, AWAY_MEMORY_S)
            if remembered is None:
                raise
            return remembered

    def forget(self) -> None:
        """Drop all entries: to be called after a commit that changes what a name means."""
        with self._lock:
            self._changes += 1
            self._known.clear()

    def _recall(self, name: NameKey, seconds: float) -> Any | None:
        value, since = self._known.get(name, (None, 0.0))
        now = time.monotonic()
        is_current = now - since < seconds and now < getattr(value, "until", math.inf)
        return value if is_current else None

    def _remember(self, name: NameKey, changes: int, look_up: Callable[[], Value]) -> Value:
        since = time.monotonic()
        try:
            found = look_up()
        except DatabaseUnavailable:
            raise
        except BaseException:
            with self._lock:
                self._known.pop(name, None)  # a row that was deleted is gone for good
            raise
        with self._lock:
            if self._changes == changes:
                if len(self._known) >= MAX_NAMES:
                    self._known.clear()
                self._known[name] = (found, since)
        return found
