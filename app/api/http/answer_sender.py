"""Sends answers: adds headers, ends with clients that do not read, and records metric and log."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import lru_cache

from prometheus_client import Histogram
from starlette.datastructures import MutableHeaders
from starlette.types import Message, Scope, Send

from app.api import docs
from app.observability import metrics

log = logging.getLogger("anchorage.request")

#: methods that metrics label by name; clients can send any text
COUNTED_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

#: the status of a request whose client left before its answer, as in nginx
UNANSWERED = 499

#: answers are sent in pieces of this size, which shows whether the client reads
PIECE_BYTES = 256 * 1024
#: time for the client to read an answer, and one more second for each ANSWER_BYTES_PER_S
ANSWER_READ_S = 60
ANSWER_BYTES_PER_S = 256 * 1024


class AnswerSender:
    """Sends one answer with the service's headers.

    abort     closes the connection at once
    stopping  returns whether the server stops, so that connections close after their answer
    policy    the Content-Security-Policy of a page that sets none; None: the answer is no page
    """

    def __init__(
        self,
        send: Send,
        request_id: str,
        *,
        abort: Callable[[], object],
        stopping: Callable[[], bool],
        policy: str | None,
    ) -> None:
        self._send = send
        self._abort = abort
        self._stopping = stopping
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._policy = policy
        self.request_id = request_id
        self.started = time.perf_counter()
        self.status = UNANSWERED

    @property
    def begun(self) -> bool:
        """Whether the status has been sent."""
        return self.status != UNANSWERED

    async def send(self, message: Message) -> None:
        """Sends a message, and closes the connection if the client does not read it in time."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-ID"] = self.request_id
            headers.raw.append((b"x-content-type-options", b"nosniff"))
            if self._policy is not None:
                headers.raw.extend(docs.SECURITY_HEADERS)
                headers.setdefault("Content-Security-Policy", self._policy)
            if self._stopping():
                headers["Connection"] = "close"
        data = message.get("body", b"")
        if self._timer is None or len(data) > PIECE_BYTES:
            self._start_timer(ANSWER_READ_S + len(data) / ANSWER_BYTES_PER_S)
        if len(data) > PIECE_BYTES:
            await self._send_pieces(message, memoryview(data))  # whose slices are no copies
        else:
            await self._send(message)
        if message["type"] == "http.response.body":
            self.stop_timer()

    def stop_timer(self) -> None:
        """Ends the deadline: the client has read what was sent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def record(self, scope: Scope, *, quiet: bool) -> None:
        """Records the metric, and the log line unless `quiet`.

        The metric is labelled by route, because paths hold names that belong to projects.
        """
        seconds = time.perf_counter() - self.started
        route = getattr(scope.get("route"), "path", "none")
        method = scope["method"] if scope["method"] in COUNTED_METHODS else "other"
        _duration_histogram(method, route, self.status).observe(seconds)
        if quiet or not log.isEnabledFor(logging.INFO):
            return
        # A record made by hand saves the look-up of the caller's line.
        values = (scope["method"], scope["path"], self.status)
        extra = {"ms": round(seconds * 1000, 2)}
        log.handle(
            log.makeRecord(
                log.name, logging.INFO, __file__, 0, "%s %s %d", values, None, extra=extra
            )
        )

    def _start_timer(self, seconds: float) -> None:
        self.stop_timer()
        self._timer = self._loop.call_later(seconds, self._break_off)

    async def _send_pieces(self, message: Message, data: memoryview) -> None:
        *first, last = range(0, len(data), PIECE_BYTES)
        for start in first:
            await self._send(
                {**message, "body": data[start : start + PIECE_BYTES], "more_body": True}
            )
        await self._send({**message, "body": data[last:]})

    def _break_off(self) -> None:
        log.warning("connection closed: the client does not read its answer")
        self._abort()


@lru_cache(maxsize=4096)
def _duration_histogram(method: str, route: str, status: int) -> Histogram:
    return metrics.REQUEST_SECONDS.labels(method, route, str(status))
