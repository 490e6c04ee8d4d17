"""Single flight: of several threads that need one value, one makes it and the others wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, TypeVar

from app.errors import DatabaseUnavailable

Value = TypeVar("Value")


class SingleFlight:
    """Runs at most one call for each key at a time."""

    def __init__(self) -> None:
        self._running: dict[Hashable, Future[Any]] = {}
        self._lock = threading.Lock()

    def run(self, key: Hashable, call: Callable[[], Value]) -> Value:
        """Return the result of `call`, or of a call for the same key that runs now.

        When that call fails, one of those who waited for it runs its own: the error may belong to
        the request of the other thread. DatabaseUnavailable is an error for all of them.
        """
        while True:
            with self._lock:
                running = self._running.get(key)
                if running is None:
                    mine = self._running[key] = Future()
                    break
            try:
                return running.result()  # type: ignore[no-any-return]
            except DatabaseUnavailable:
                raise
            except BaseException:  # noqa: S112  # the thread that ran the call raises it
                continue
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
