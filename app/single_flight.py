"""Single flight: of several threads that need one value, one makes it and the others wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from copy import copy
from typing import Any, TypeVar

from app.errors import AnchorageError, DatabaseUnavailable

Value = TypeVar("Value")


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
