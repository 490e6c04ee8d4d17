"""Redis, which everything can do without: every call ends in a bounded time, and any failure only means that it is away.

A server that is overloaded, misconfigured or no Redis at all answers in ways that redis-py reports with any exception, or not at
all. `OptionalRedis.ask` is the one place that knows this: callers see an answer or RedisAway.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

log = logging.getLogger("anchorage.redis")

Answer = TypeVar("Answer")

#: how long a socket waits: for a connection, and for the next bytes of an answer
CONNECT_S = 1.0
ANSWER_S = 1.0

#: how long a whole call may take, however slowly its bytes come: the largest entry of the cache has 256 MiB
PATIENCE_S = 3.0

#: how long /readyz waits
READY_S = 1.0

#: how long a process leaves Redis alone after a failed call
AWAY_S = 2.0

#: calls of one client at once; further ones wait for them, within their own patience
CALLS = 16


class RedisAway(Exception):
    """Redis cannot be used now."""


class Circuit:
    """Decides who may ask a server: everybody while it works; after a failure nobody for AWAY_S, and then one at a time."""

    def __init__(self) -> None:
        self._works = True
        self._away_until = 0.0
        self._lock = threading.Lock()

    def admits(self) -> bool:
        """Whether the caller may ask. It must then say how it went: `worked` or `failed`."""
        with self._lock:
            if self._works:
                return True
            if time.monotonic() < self._away_until:
                return False
            self._away_until = (
                time.monotonic() + PATIENCE_S + AWAY_S
            )  # the others do not wait for this one's answer
            return True

    def worked(self) -> None:
        self._works = True

    def failed(self) -> None:
        with self._lock:
            self._works, self._away_until = False, time.monotonic() + AWAY_S


class OptionalRedis:
    """A client whose calls end in a bounded time, and fail with RedisAway only."""

    def __init__(self, url: str) -> None:
        self._client = redis_client(url)
        self._circuit = Circuit()
        self._threads = ThreadPoolExecutor(CALLS, thread_name_prefix="redis")

    def ask(self, question: Callable[[Redis], Answer], *, patience_s: float = PATIENCE_S) -> Answer:
        """What `question` returns within `patience_s`, run in a thread of this client's. Raises RedisAway, whatever happened.

        `question` makes one call of the client, or a few, and checks the type of what came back.
        """
        if not self._circuit.admits():
            raise RedisAway("Redis failed a moment ago")
        call: Future[Answer] | None = None
        try:
            call = self._threads.submit(question, self._client)
            answer = call.result(patience_s)
        except Exception as error:
            self._circuit.failed()
            if call is not None:
                call.cancel()
            self._client.connection_pool.disconnect()  # ends a call that still waits, and drops what may still come
            log.warning(
                "Redis is left alone for %.0f s: %s %.200r",
                AWAY_S,
                type(error).__name__,
                str(error),
            )
            raise RedisAway(type(error).__name__) from error
        self._circuit.worked()
        return answer

    def takes_writes(self, key: str) -> bool:
        """Whether Redis stores something now: a full one, a read-only one and anything else behind its address do not."""
        try:
            self.ask(lambda client: _write(client, key), patience_s=READY_S)
        except RedisAway:
            return False
        return True

    def close(self) -> None:
        self._client.close()
        self._client.connection_pool.disconnect()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _write(client: Redis, key: str) -> None:
    """Write a value and read it back. Raises ValueError when another one comes back."""
    value = secrets.token_hex(8).encode()
    client.set(key, value, ex=60)
    if client.get(key) != value:
        raise ValueError("a value that was just written does not come back")


def redis_client(url: str) -> Redis:
    """A client that tries each call once, with short time-outs. Raises ValueError for a URL that is none."""
    return Redis.from_url(
        url,
        socket_connect_timeout=CONNECT_S,
        socket_timeout=ANSWER_S,
        retry=Retry(NoBackoff(), 0),
        health_check_interval=15,
        protocol=2,  # with 3 the pool hands out connections that still hold an answer to somebody else's question
    )
