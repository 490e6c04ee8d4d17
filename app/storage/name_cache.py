"""What names stand for, remembered by this process for a moment, so that a busy name is not looked up for each request.

Other processes may delete what is remembered here, and give its name to something else. They answer their client SETTLE_S after
their commit, and no process answers by what it looked up longer than MEMORY_S ago. So once a deletion is answered, nobody answers
from before it, and no process needs to hear of it (docs/decisions/0018).
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

#: how long a process remembers, from before it looks up
MEMORY_S = 0.5

#: while the database does not answer: nobody who cannot reach it either deletes anything meanwhile
AWAY_MEMORY_S = 60.0

#: how long a change waits until all processes have forgotten what was before it. What it is longer than MEMORY_S is for a commit
#: that takes its time, and for clocks that differ: the moment of a deletion is written down before it is committed
SETTLE_S = 0.75

#: names remembered at once
MOST = 10_000


class Name(NamedTuple):
    """What is remembered: of which project, of what kind, and the names in the request."""

    project: str
    kind: str
    names: tuple[str | None, ...]


class _LookUp:
    """A look-up in progress, or its result; `value` is None until it has ended."""

    __slots__ = ("future", "since", "value")

    def __init__(self) -> None:
        self.since = time.monotonic()
        self.value: Any = None
        self.future: Future[Any] = Future()

    def is_younger_than(self, seconds: float) -> bool:
        return time.monotonic() - self.since < seconds

    def outlasts(self) -> bool:
        """Whether it found something that stays true while the database does not answer."""
        return self.value is not None and self.is_younger_than(AWAY_MEMORY_S)


class Names:
    """What this process remembers. Values are small: rows and ids, never tensors.

    alone  whether no other process can change what names stand for: then nothing is forgotten until this one changes it
    away   whether the database is known not to answer now
    """

    def __init__(self, *, alone: bool, away: Callable[[], bool] = lambda: False) -> None:
        self._alone = alone
        self._away = away
        self._known: dict[Name, _LookUp] = {}
        self._lock = threading.Lock()

    @property
    def settle_s(self) -> float:
        """How long the client that changed what a name stands for must wait for its answer."""
        return 0.0 if self._alone else SETTLE_S

    def still_settling_s(self, changed_at: datetime) -> float:
        """How much of that is left of a change whose row was written then."""
        age_s = (now() - changed_at).total_seconds()
        return min(max(0.0, self.settle_s - age_s), self.settle_s)

    def find(self, name: Name) -> Any | None:
        """What is remembered; no IO, and nobody is waited for."""
        known = self._known.get(name)
        return None if known is None or not self._holds(known) else known.value

    def find_or(self, name: Name, look_up: Callable[[], Value]) -> Value:
        """What is remembered, or else what `look_up` finds now, which is remembered; what it raises is not.

        One of many threads at once looks up, and the others take its result. When the database does not answer, what was found
        within the last AWAY_MEMORY_S stays true.
        """
        with self._lock:
            known = self._known.get(name)
            if known is None or not self._holds(known):
                if len(self._known) >= MOST:
                    self._known.clear()
                new = self._known[name] = _LookUp()
            else:
                new = None
        if new is not None:
            return self._look_up(name, new, known, look_up)
        assert known is not None
        return known.future.result()  # type: ignore[no-any-return]

    def _look_up(
        self, name: Name, new: _LookUp, old: _LookUp | None, look_up: Callable[[], Value]
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
                if self._known.get(name) is new:  # nothing was forgotten meanwhile
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
        """To be called after the commit of what changes what a name stands for; its client is answered `settle_s` later."""
        with self._lock:
            self._known.clear()

    def _holds(self, known: _LookUp) -> bool:
        if self._alone:
            return True
        return known.is_younger_than(AWAY_MEMORY_S if self._away() else MEMORY_S)
