"""Limits what one process does at once: requests and their bytes, and streams of events."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from app.errors import Overloaded, TooMuchAtOnce


@dataclass
class InFlight:
    """The requests that are being answered, and the bytes of their bodies and answers.

    what     what they are, for errors
    shares   by project, its requests and bytes
    """

    max_requests: int
    max_bytes: int = 0
    what: str = "requests"
    retry_after_s: int = 1
    requests: int = field(default=0, init=False)
    bytes: int = field(default=0, init=False)
    shares: dict[str, tuple[int, int]] = field(default_factory=dict, init=False)
    #: routes reserve bytes for answers in threads
    lock: threading.Lock = field(default_factory=threading.Lock, init=False)


class Reservation:
    """The place and the bytes of one request.

    A project may reserve half of each limit, so that it cannot lock out the others.
    """

    def __init__(self, in_flight: InFlight) -> None:
        self._all = in_flight
        self._entered = False
        self._project: str | None = None
        self._bytes = 0

    def enter(self) -> None:
        """Takes a place."""
        every = self._all
        with every.lock:
            if every.requests >= every.max_requests:
                raise Overloaded(
                    f"The server is answering {every.max_requests} {every.what}, its limit. Try "
                    "again.",
                    retry_after_s=every.retry_after_s,
                    limit=every.max_requests,
                )
            every.requests += 1
            self._entered = True

    def join(self, project: str | None) -> None:
        """Counts the request to its project; None: without keys."""
        every = self._all
        if project is None:
            return
        with every.lock:
            count, held = every.shares.get(project, (0, 0))
            half = every.max_requests // 2
            if count and count >= half:
                raise TooMuchAtOnce(
                    f"This project has {count} {every.what} in flight, and its limit is {half}. "
                    "Send fewer at once.",
                    retry_after_s=every.retry_after_s,
                    limit=half,
                )
            every.shares[project] = (count + 1, held)
            self._project = project

    def take(self, size: int) -> None:
        """Reserves `size` bytes.

        One request reserves at most half of all bytes, even if it needs more.
        """
        every = self._all
        half = every.max_bytes // 2
        with every.lock:
            size = min(size, half - self._bytes)
            if size == 0:
                return
            count, held = every.shares.get(self._project or "", (0, 0))
            if held + size > half:
                raise TooMuchAtOnce(
                    f"This project has {held} bytes in flight, this request needs {size} more, and "
                    f"the project's limit is {half}. Send fewer requests at once."
                )
            if every.bytes + size > every.max_bytes:
                raise Overloaded(
                    f"The server holds {every.bytes} bytes in flight, and its limit is "
                    f"{every.max_bytes}. Try again."
                )
            if self._project is not None:
                every.shares[self._project] = (count, held + size)
            every.bytes += size
            self._bytes += size

    def leave(self) -> None:
        """Gives the place and the bytes back; a second call does nothing."""
        every = self._all
        with every.lock:
            if self._project is not None:
                count, held = every.shares.pop(self._project)
                if count > 1:
                    every.shares[self._project] = (count - 1, held - self._bytes)
            every.bytes -= self._bytes
            every.requests -= self._entered
            self._entered, self._project, self._bytes = False, None, 0
