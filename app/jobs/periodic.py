"""Threads of a worker that do something again and again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from app.errors import DatabaseUnavailable
from app.ops.devices import is_device_failure

log = logging.getLogger("anchorage.worker")


class Periodic(threading.Thread):
    """A thread that calls `do` at once and then every `every_s` seconds.

    It logs errors, and ends when the device has failed.
    """

    def __init__(self, what: str, every_s: float, do: Callable[[], object]) -> None:
        super().__init__(name=what, daemon=True)
        self._every_s = every_s
        self._do = do
        self._ended = threading.Event()

    def run(self) -> None:
        while True:
            try:
                self._do()
            except DatabaseUnavailable as error:
                log.warning("cannot %s: %s", self.name, error.detail)
            except Exception as error:
                log.exception("cannot %s", self.name)
                if is_device_failure(error):
                    return
            if self._ended.wait(self._every_s):
                return

    def stop(self, wait_s: float) -> None:
        """Stop after the current call, for which it waits up to `wait_s`."""
        self._ended.set()
        if self.is_alive():
            self.join(wait_s)
