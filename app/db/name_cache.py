"""A short memory of the rows behind names, so that a busy name is not looked up for each request.

A process may use a row for MEMORY_S after another process has changed or deleted it. Its own
changes count at once: they call `forget`. Values are read in one statement and content hashes name
what is computed from them, so an answer is by one set of a name, the deleted or the new one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from app.errors import DatabaseUnavailable
from app.single_flight import SingleFlight

Value = TypeVar("Value")

#: how long an entry is used, counted from the start of its look-up
MEMORY_S = 0.5

#: the same while the database does not answer
AWAY_MEMORY_S = 60.0

#: most entries
MAX_NAMES = 10_000


class NameKey(NamedTuple):
    """The key of an entry: project, kind and the names in the request."""

    project: str
    kind: str
    names: tuple[str | None, ...]


class NameCache:
    """The memory of this process. Values are small: rows and ids, not tensors.

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
        return value if time.monotonic() - since < seconds else None

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
