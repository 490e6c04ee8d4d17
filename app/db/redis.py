"""Redis as an optional dependency: a call returns an answer, or raises RedisAway soon.

A server that is overloaded, misconfigured or not Redis at all makes redis-py raise almost any
exception. `OptionalRedis.ask` hides this: its callers see an answer or RedisAway.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

log = logging.getLogger("anchorage.redis")

Answer = TypeVar("Answer")

#: timeouts of the socket: for a connection, and for the next bytes of an answer
REDIS_CONNECT_S = 1.0
REDIS_READ_S = 1.0

#: how long one call may take before another caller tries Redis again
REDIS_CALL_S = 3.0

#: how long a process sends no calls after one has failed
AWAY_S = 2.0


class RedisAway(Exception):
    """Redis cannot be used now."""


class Circuit:
    """A circuit breaker: after a failure it admits no call for AWAY_S, and then one at a time."""

    def __init__(self) -> None:
        self._works = True
        self._away_until = 0.0
        self._lock = threading.Lock()

    def admits(self) -> bool:
        """Return whether the caller may call. If so, it must then call `worked` or `failed`."""
        with self._lock:
            if self._works:
                return True
            if time.monotonic() < self._away_until:
                return False
            self._away_until = (
                time.monotonic() + REDIS_CALL_S + AWAY_S
            )  # other callers do not wait for this one
            return True

    def worked(self) -> None:
        self._works = True

    def failed(self) -> None:
        with self._lock:
            self._works, self._away_until = False, time.monotonic() + AWAY_S


class OptionalRedis:
    """A client whose calls return in a bounded time and raise only RedisAway."""

    def __init__(self, url: str) -> None:
        self._client = redis_client(url)
        self._circuit = Circuit()

    def ask(self, question: Callable[[Redis], Answer]) -> Answer:
        """Return the result of `question`. Raises RedisAway for any failure.

        `question` makes one or a few calls of the client and checks the type of their answers.
        """
        if not self._circuit.admits():
            raise RedisAway("Redis failed a moment ago")
        try:
            answer = question(self._client)
        except Exception as error:
            self._circuit.failed()
            self._client.connection_pool.disconnect()  # with the unread rest of an answer
            log.warning(
                "Redis failed and is not called for %.0f s: %s %.200r",
                AWAY_S,
                type(error).__name__,
                str(error),
            )
            raise RedisAway(type(error).__name__) from error
        self._circuit.worked()
        return answer

    def takes_writes(self, key: str) -> bool:
        """Return whether Redis accepts writes: not when it is full, read-only or something else."""
        try:
            self.ask(lambda client: _write(client, key))
        except RedisAway:
            return False
        return True

    def close(self) -> None:
        self._client.close()
        self._client.connection_pool.disconnect()


def _write(client: Redis, key: str) -> None:
    """Write a value and read it back. Raises ValueError when the two differ."""
    value = secrets.token_hex(8).encode()
    client.set(key, value, ex=60)
    if client.get(key) != value:
        raise ValueError("Redis did not return the value that was just written")


def redis_client(url: str) -> Redis:
    """Return a client with short timeouts and no retries. Raises ValueError for an invalid URL."""
    return Redis.from_url(
        url,
        socket_connect_timeout=REDIS_CONNECT_S,
        socket_timeout=REDIS_READ_S,
        retry=Retry(NoBackoff(), 0),
        health_check_interval=15,
        protocol=2,  # with 3, the pool reuses connections that hold another caller's answer
    )
