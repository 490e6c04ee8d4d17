"""Limits the connections of one process: without a free file descriptor it could not serve."""

from __future__ import annotations

import resource
from typing import Protocol

#: time for the first head of a connection, and for each later head from its first byte
HEAD_S = 10.0

#: most connections by default, if `ulimit -n` allows more; each can hold 64 KiB of a head
DEFAULT_CONNECTIONS = 4_096

#: most connections that wait to be accepted, if `ulimit -n` allows more
DEFAULT_BACKLOG = 2_048


class Closable(Protocol):
    """A connection."""

    def hang_up(self) -> None:
        """Closes the connection at once, and drops unsent bytes."""


class Connections:
    """The connections of one process, at most `most`.

    A new connection replaces the one that has waited longest for a complete head, so that idle
    clients cannot lock out those that send requests.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._open: set[Closable] = set()
        self._waiting: dict[Closable, None] = {}

    def add(self, connection: Closable) -> bool:
        """Counts a new connection; returns False if all others are answering requests."""
        self._open.add(connection)
        fits = len(self._open) <= self.most or self._close_oldest()
        if fits:
            self.wait(connection)
        return fits

    def wait(self, connection: Closable) -> None:
        """Notes that this connection answers no request; it may still carry a refused one."""
        if connection in self._open:
            self._waiting[connection] = None

    def work(self, connection: Closable) -> None:
        """Notes that this connection answers a request."""
        self._waiting.pop(connection, None)

    def remove(self, connection: Closable) -> None:
        """Forgets a closed connection."""
        self._open.discard(connection)
        self._waiting.pop(connection, None)

    def _close_oldest(self) -> bool:
        oldest = next(iter(self._waiting), None)
        if oldest is None:
            return False
        del self._waiting[oldest]
        oldest.hang_up()
        return True


def most_connections(wanted: int | None) -> int:
    """Returns `wanted` or the default, but at most half of this process's open files."""
    return min(_open_files() // 2, DEFAULT_CONNECTIONS if wanted is None else wanted)


def backlog() -> int:
    """Returns how many connections may wait to be accepted: at most a quarter of the open files."""
    return min(_open_files() // 4, DEFAULT_BACKLOG)


def _open_files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft > 0 else 2**20
