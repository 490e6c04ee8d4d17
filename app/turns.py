"""How threads wait: in turn for what is scarce (cores, memory, loads of models, stores), and for a
thread that makes the value that they need too.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import Any, TypeVar

from app.errors import AnchorageError, DatabaseUnavailable, Overloaded, TooMuchAtOnce

Value = TypeVar("Value")


@dataclass(frozen=True, eq=False)
class _Turn:
    """What one caller asks for; `begun` has a result once it holds that."""

    project: str
    amount: int
    begun: Future[None] = field(default_factory=Future)


@dataclass(eq=False)
class _Share:
    """What one project holds, who of it waits, and the turn in which it was last served."""

    held: int = 0
    waiting: deque[_Turn] = field(default_factory=deque)
    served: int = 0


class Turns:
    """A scarce thing, of which `at_once` can be held; `waiting` more callers wait for it.

    A project may hold as much as it leaves free: half while it is alone, half of the other half
    beside such a project, and so on. One that holds nothing may take all that is free, and its
    first caller may always wait. The next turn is for the project that was served longest ago.

    what  the plural, for errors
    """

    def __init__(self, what: str, at_once: int, waiting: int = 0) -> None:
        self.what = what
        self.at_once = self._free = at_once
        self._places = waiting
        self._shares: dict[str, _Share] = {}
        self._turn = 0
        self._lock = threading.Lock()

    @property
    def held(self) -> int:
        return self.at_once - self._free

    @contextmanager
    def take(self, project: str, wait_s: float = 0.0, *, amount: int = 1) -> Iterator[None]:
        """Hold an amount, after waiting for it in this thread.

        Raises TooMuchAtOnce if the project has too much of it, and Overloaded if others have.
        """
        turn = self._ask(project, amount)
        try:
            try:
                turn.begun.result(wait_s)
            except TimeoutError:
                raise self._refusal(turn) from None
            yield
        finally:
            self._leave(turn)

    def _ask(self, project: str, amount: int) -> _Turn:
        turn = _Turn(project, amount)
        with self._lock:
            share = self._shares.setdefault(project, _Share())
            share.waiting.append(turn)
            self._serve()
            mine = len(share.waiting)
            free_places = self._places - sum(len(each.waiting) for each in self._shares.values())
            if not turn.begun.done() and (self._places == 0 or (mine > 1 and mine > free_places)):
                refusal = self._refusal(turn)
                self._remove(turn)
                raise refusal
        return turn

    def _serve(self) -> None:
        """Begin all turns that can be held now."""
        while ready := [share for share in self._shares.values() if self._may_hold_next(share)]:
            share = min(ready, key=lambda each: each.served)
            turn = share.waiting.popleft()
            share.held += turn.amount
            self._free -= turn.amount
            self._turn += 1
            share.served = self._turn
            turn.begun.set_result(None)

    def _may_hold_next(self, share: _Share) -> bool:
        if not share.waiting:
            return False
        more = share.waiting[0].amount
        most = self._free if share.held == 0 else (self._free - share.held) // 2
        return more <= most

    def _leave(self, turn: _Turn) -> None:
        with self._lock:
            self._remove(turn)
            self._serve()

    def _remove(self, turn: _Turn) -> None:
        share = self._shares[turn.project]
        if turn.begun.done():
            share.held -= turn.amount
            self._free += turn.amount
        else:
            share.waiting.remove(turn)
        if not share.held and not share.waiting:
            del self._shares[turn.project]

    def _refusal(self, turn: _Turn) -> AnchorageError:
        share = self._shares[turn.project]
        if share.held or len(share.waiting) > 1:
            return TooMuchAtOnce(
                f"This project has {share.held} of the server's {self.at_once} {self.what} and "
                f"asks for {turn.amount} more, but must leave as much to others. Send fewer "
                "requests at once.",
                limit=max(1, self.at_once // 2),
            )
        return Overloaded(
            f"The server is busy: other projects have {self.held} of its {self.at_once} "
            f"{self.what}. Try again in 1 s.",
            limit=self.at_once,
        )


class SingleFlight:
    """Runs at most one call for each key at a time.

    shared_errors  errors of a call that are those of all who wait for it
    """

    def __init__(self, shared_errors: type[BaseException] = DatabaseUnavailable) -> None:
        self._shared_errors = shared_errors
        self._running: dict[Hashable, Future[Any]] = {}
        self._lock = threading.Lock()

    def run(self, key: Hashable, call: Callable[[], Value]) -> Value:
        """Return the result of `call`, or of a call for the same key that runs now.

        When that call fails with another error than a shared one, one of those who waited for it
        runs its own: the error may belong to the request of the other thread. Of a shared one each
        gets a copy, because each request names its own field in it.
        """
        while True:
            with self._lock:
                running = self._running.get(key)
                if running is None:
                    mine = self._running[key] = Future()
                    break
            try:
                return running.result()  # type: ignore[no-any-return]
            except BaseException as error:  # the thread that ran the call raises it too
                if isinstance(error, self._shared_errors):
                    raise (copy(error) if isinstance(error, AnchorageError) else error) from error
        try:
            value = call()
        except BaseException as error:
            self._end(key)
            mine.set_exception(error)
            raise
        self._end(key)
        mine.set_result(value)
        return value

    def _end(self, key: Hashable) -> None:
        with self._lock:
            del self._running[key]
