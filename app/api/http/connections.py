"""How many connections one process holds, and which it closes for another: without room for one more file, it serves nobody."""

from __future__ import annotations

import resource
from typing import Protocol

#: a connection's first head, and each later one from its first byte on, is whole within this
HEAD_S = 10.0

#: connections where the operator names no number and `ulimit -n` leaves more; each may hold 64 KiB of a head
DEFAULT_CONNECTIONS = 4_096

#: connections that wait to be accepted, where `ulimit -n` leaves more
DEFAULT_BACKLOG = 2_048


class Closable(Protocol):
    """A connection."""

    def hang_up(self) -> None:
        """Close it at once, whatever was not sent yet."""


class Connections:
    """The connections of one process, `most` at a time.

    One that waits for a request, however much of its head has come, is closed for a new one, and first the one that has waited
    longest: a client that sends its request soon is served, however many others send nothing.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._open: set[Closable] = set()
        self._waiting: dict[Closable, None] = {}

    def add(self, connection: Closable) -> bool:
        """Count a new connection; False if there is no room, as a request is being answered on every other one."""
        self._open.add(connection)
        fits = len(self._open) <= self.most or self._close_oldest()
        if fits:
            self.wait(connection)
        return fits

    def wait(self, connection: Closable) -> None:
        """No request is being answered on this connection now; its client may have to send or read the rest of a refused one."""
        if connection in self._open:
            self._waiting[connection] = None

    def work(self, connection: Closable) -> None:
        """A request has come on this connection."""
        self._waiting.pop(connection, None)

    def remove(self, connection: Closable) -> None:
        """A connection is closed."""
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
    """As many connections as are wanted, but no more than half of the files that this process may open."""
    return min(_open_files() // 2, DEFAULT_CONNECTIONS if wanted is None else wanted)


def backlog() -> int:
    """How many connections may wait to be accepted: all of them may be at once, before any other is closed for them."""
    return min(_open_files() // 4, DEFAULT_BACKLOG)


def _open_files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft > 0 else 2**20
