"""Wakes idle workers when a job is queued, so that it starts at once.

Without it jobs start up to half a second later: idle workers query the database twice a second.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

from redis import Redis

from app.storage.redis import AWAY_S

log = logging.getLogger("anchorage.wakeup")

#: how long the listening thread waits for a message before it checks whether to stop
LISTEN_S = 0.5


class LocalWakeup:
    """Wakes the workers of this process."""

    def __init__(self) -> None:
        self._event = Event()

    def notify(self) -> None:
        """Wake the workers. Never waits and never raises."""
        self._event.set()

    def wait(self, timeout_s: float) -> None:
        """Return after `timeout_s`, or as soon as `notify` has been called since the last wait."""
        self._event.wait(timeout_s)
        self._event.clear()

    def close(self) -> None:
        """Wake all waiting threads. Later calls have no effect."""
        self._event.set()


class RedisWakeup(LocalWakeup):
    """Wakes the workers of all processes by a message on a Redis channel.

    Only its own threads call Redis. Whatever Redis does, `notify` returns at once and `wait`
    returns after its timeout.
    """

    def __init__(self, client: Redis, prefix: str) -> None:
        super().__init__()
        self._client = client
        self._channel = f"{prefix}:jobs"
        self._to_publish = Event()
        self._closing = Event()
        self._threads: dict[str, Thread] = {}
        self._lock = threading.Lock()

    def notify(self) -> None:
        self._to_publish.set()
        self._start("publish", self._publish)

    def wait(self, timeout_s: float) -> None:
        self._start("listen", self._listen)
        super().wait(timeout_s)

    def close(self) -> None:
        with self._lock:
            self._closing.set()
        self._to_publish.set()
        super().close()
        for thread in self._threads.values():
            thread.join()
        self._client.close()

    def _start(self, name: str, target: Callable[[], None]) -> None:
        with self._lock:
            if name not in self._threads and not self._closing.is_set():
                self._threads[name] = Thread(target=target, name=f"wakeup-{name}", daemon=True)
                self._threads[name].start()

    def _publish(self) -> None:
        while self._to_publish.wait() and not self._closing.is_set():
            self._to_publish.clear()
            with self._pausing_after_failure():
                self._client.publish(self._channel, b"")

    def _listen(self) -> None:
        while not self._closing.is_set():
            with self._pausing_after_failure(), self._client.pubsub() as messages:  # type: ignore[no-untyped-call]
                messages.subscribe(self._channel)
                while not self._closing.is_set():
                    message = messages.get_message(timeout=LISTEN_S)
                    if message is not None and message["type"] == "message":
                        self._event.set()

    @contextmanager
    def _pausing_after_failure(self) -> Iterator[None]:
        """Log a failure of any kind and pause."""
        try:
            yield
        except Exception as error:
            log.warning(
                "Redis sends no wake-ups, so jobs start up to half a second later: %s",
                type(error).__name__,
            )
            self._closing.wait(AWAY_S)
