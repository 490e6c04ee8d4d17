"""A short cache of the rows behind names, so that a busy name is not looked up for each request.

Another process may delete a row that is cached here and reuse its name. It answers its client
SETTLE_S after the commit, and no process uses an entry older than MEMORY_S. So once a deletion is
answered, no process returns the deleted row, and none needs a message (docs/decisions/0018).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from app.errors import DatabaseUnavailable
from app.storage.tables import now

Value = TypeVar("Value")

#: how long an entry is used, counted from the start of its look-up
MEMORY_S = 0.5

#: the same while the database does not answer: no process can delete a row meanwhile
AWAY_MEMORY_S = 60.0

#: how long the client of a deletion waits for its answer, until no process has an old entry.
#: It exceeds MEMORY_S to allow for slow commits and clock differences: a deletion is timed
#: before its commit
SETTLE_S = 0.75

#: most entries
MOST_NAMES = 10_000


class NameKey(NamedTuple):
    """The key of an entry: project, kind and the names in the request."""

    project: str
    kind: str
    names: tuple[str | None, ...]


class _LookUp:
    """A look-up in progress, or its result. `value` is None until it ends."""

    __slots__ = ("future", "since", "value")

    def __init__(self) -> None:
        self.since = time.monotonic()
        self.value: Any = None
        self.future: Future[Any] = Future()

    def is_younger_than(self, seconds: float) -> bool:
        return time.monotonic() - self.since < seconds

    def outlasts(self) -> bool:
        """Return whether its result may be used while the database does not answer."""
        return self.value is not None and self.is_younger_than(AWAY_MEMORY_S)


class NameCache:
    """The cache of this process. Values are small: rows and ids, not tensors.

    alone  whether no other process can change rows; entries then stay until this one changes them
    away   returns whether the database does not answer now
    """

    def __init__(self, *, alone: bool, away: Callable[[], bool] = lambda: False) -> None:
        self._alone = alone
        self._away = away
        self._known: dict[NameKey, _LookUp] = {}
        self._lock = threading.Lock()

    @property
    def settle_s(self) -> float:
        """Return how long the client of a deletion must wait for its answer."""
        return 0.0 if self._alone else SETTLE_S

    def still_settling_s(self, changed_at: datetime) -> float:
        """Return how much of that time is left for a row that changed at `changed_at`."""
        age_s = (now() - changed_at).total_seconds()
        return min(max(0.0, self.settle_s - age_s), self.settle_s)

    def find(self, name: NameKey) -> Any | None:
        """Return the entry, or None. Does no IO and waits for no other thread."""
        known = self._known.get(name)
        return None if known is None or not self._is_valid(known) else known.value

    def find_or(self, name: NameKey, look_up: Callable[[], Value]) -> Value:
        """Return the entry, or call `look_up` and cache its result. Exceptions are not cached.

        Of several threads, one looks up and the others use its result. While the database does not
        answer, results of the last AWAY_MEMORY_S are used.
        """
        with self._lock:
            known = self._known.get(name)
            if known is None or not self._is_valid(known):
                if len(self._known) >= MOST_NAMES:
                    self._known.clear()
                new = self._known[name] = _LookUp()
            else:
                new = None
        if new is not None:
            return self._look_up(name, new, known, look_up)
        assert known is not None
        return known.future.result()  # type: ignore[no-any-return]

    def _look_up(
        self, name: NameKey, new: _LookUp, old: _LookUp | None, look_up: Callable[[], Value]
    ) -> Value:
        try:
            found = look_up()
        except BaseException as error:
            stays = (
                old
                if isinstance(error, DatabaseUnavailable) and old is not None and old.outlasts()
                else None
            )
            with self._lock:
                if self._known.get(name) is new:  # `forget` was not called meanwhile
                    del self._known[name]
                    if stays is not None:
                        self._known[name] = stays
            if stays is None:
                new.future.set_exception(error)
                raise
            found = stays.value
        new.value = found
        new.future.set_result(found)
        return found

    def forget(self) -> None:
        """Drop all entries: to be called after a commit that changes what a name means."""
        with self._lock:
            self._known.clear()

    def _is_valid(self, known: _LookUp) -> bool:
        if self._alone:
            return True
        return known.is_younger_than(AWAY_MEMORY_S if self._away() else MEMORY_S)
