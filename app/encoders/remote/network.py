"""TCP connections whose operations all end at the deadline of the current thread."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import httpcore2

WRITE_BYTES = 64 * 1024

#: when the request of this thread must end, by time.monotonic()
_deadline: ContextVar[float] = ContextVar("deadline")


@contextmanager
def set_deadline(deadline: float) -> Iterator[None]:
    """End every network operation of this thread at `deadline`, by time.monotonic()."""
    token = _deadline.set(deadline)
    try:
        yield
    finally:
        _deadline.reset(token)


def seconds_left() -> float:
    """Return the seconds until the deadline of this thread; negative after it."""
    return _deadline.get() - time.monotonic()


class DeadlineBackend(httpcore2.NetworkBackend):
    """TCP with the deadline of the thread that connects, reads or writes."""

    def __init__(self) -> None:
        self._backend = httpcore2.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        limit_s = _limit_timeout(httpcore2.ConnectTimeout, timeout)
        return DeadlineStream(
            self._backend.connect_tcp(host, port, limit_s, local_address, socket_options)
        )


class DeadlineStream(httpcore2.NetworkStream):
    """A connection that gives each operation only the time until the deadline."""

    def __init__(self, stream: httpcore2.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _limit_timeout(httpcore2.ReadTimeout, timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        # The socket restarts its timeout whenever the peer reads a few bytes. Small parts make the
        # deadline count.
        for start in range(0, len(buffer), WRITE_BYTES):
            limit_s = _limit_timeout(httpcore2.WriteTimeout, timeout)
            self._stream.write(buffer[start : start + WRITE_BYTES], limit_s)

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.NetworkStream:
        limit_s = _limit_timeout(httpcore2.ConnectTimeout, timeout)
        return DeadlineStream(self._stream.start_tls(ssl_context, server_hostname, limit_s))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _limit_timeout(late: type[httpcore2.TimeoutException], timeout: float | None) -> float:
    """Return the seconds that an operation may take. Raises `late` after the deadline."""
    left_s = seconds_left()
    if left_s <= 0:
        raise late
    return left_s if timeout is None else min(left_s, timeout)
