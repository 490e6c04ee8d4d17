"""What happens to every request before any route sees it, and to every answer after: ids, Host, keys, limits, metrics, logs.

Plain ASGI and outside the framework: a refused request costs next to nothing, and its body is never kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import structlog
from anyio import CapacityLimiter, move_on_after, to_thread
from fastapi import Request
from prometheus_client import Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api import docs
from app.api.http import problems
from app.api.http.failed_keys import FailedKeys
from app.api.http.rate_limit import RateLimiter
from app.errors import (
    AnchorageError,
    HostNotAllowed,
    OriginNotAllowed,
    Overloaded,
    TooMuchAtOnce,
    Unauthenticated,
)
from app.observability import metrics
from app.services.access.api_keys import Caller, KeyRing
from app.services.request_context import RequestContext

log = logging.getLogger("anchorage.request")

#: answered to everyone: they say nothing about anyone's data
PROBES = frozenset({"/livez", "/readyz", "/v2/health/live", "/v2/health/ready"})

#: verbs that change nothing: a page of another site may have a browser ask so, and cannot read the answer
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
#: what browsers call requests of a service's own pages, and of its user
OWN_SITE = frozenset({"same-origin", "none"})

#: what the metrics call by its name; clients may write anything
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

#: a client's own id of a request, if it is short and plain
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

#: streams have limits of their own: they last
EVENTS = re.compile(r"/jobs/[^/]+/events")

#: for keys
THREADS = 8

#: how long a request waits for the look-up of a key that worked within the last minute
LOOK_UP_S = 1.0

#: the status of a request whose client left before it was answered, as nginx has it
UNANSWERED = 499

#: a refused request's body is thrown away for so long at most
DISCARD_S = 10

#: an answer goes out in pieces of this size, so that it is known whether the client reads it
PIECE_BYTES = 256 * 1024
#: it is read within so long, and so much longer for its bytes: it holds its room until then
ANSWER_S = 60
ANSWER_BYTES_PER_S = 256 * 1024

#: how often the gauges are set
SHOW_S = 1.0

BUSY_PROJECT = "this project has as much in flight as one project may"


@dataclass
class Admission:
    """What decides whether a request is let in.

    hosts  names of this server that a Host header may hold; None: any
    keys   None: no key is asked for
    """

    keys: KeyRing | None
    rates: RateLimiter
    hosts: frozenset[str] | None
    max_body_bytes: int
    max_stream_bytes: int
    max_in_flight: int
    max_in_flight_bytes: int
    #: a stopping server says so in /readyz and closes connections after their answer
    stopping: bool = False
    #: threads for keys alone: slow requests occupy all of the framework's
    threads: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(THREADS))
    failed_keys: FailedKeys = field(default_factory=FailedKeys)
    in_flight: int = field(default=0, init=False)
    bytes_in_flight: int = field(default=0, init=False)
    #: of each project that has any: requests and bytes in flight
    shares: dict[str, tuple[int, int]] = field(default_factory=dict, init=False)
    #: routes take room for their answers in threads
    lock: threading.Lock = field(default_factory=threading.Lock, init=False)


class Reservation:
    """One request's part of what the server answers at once: a place, and the bytes of its body and of its answer.

    A project may have half of it, or it could lock all others out.
    """

    def __init__(self, admission: Admission) -> None:
        self._at = admission
        self._entered = False
        self._project: str | None = None
        self._bytes = 0

    def enter(self) -> None:
        """Take a place. Raises Overloaded."""
        at = self._at
        with at.lock:
            if at.in_flight >= at.max_in_flight:
                raise Overloaded("the server answers as many requests as it can", retry_after_s=1)
            at.in_flight += 1
            self._entered = True

    def join(self, project: str | None) -> None:
        """Count among the project's requests; None: without keys there are no projects. Raises TooMuchAtOnce."""
        at = self._at
        if project is None:
            return
        with at.lock:
            count, held = at.shares.get(project, (0, 0))
            if count and count >= at.max_in_flight // 2:
                raise TooMuchAtOnce(BUSY_PROJECT, retry_after_s=1)
            at.shares[project] = (count + 1, held)
            self._project = project

    def take(self, size: int) -> None:
        """Take room for so many bytes. Raises Overloaded, TooMuchAtOnce.

        One request takes half of all the room at most, however much it needs: the other half is for the others.
        """
        at = self._at
        half = at.max_in_flight_bytes // 2
        with at.lock:
            size = min(size, half - self._bytes)
            if size == 0:
                return
            count, held = at.shares.get(self._project or "", (0, 0))
            if held + size > half:
                raise TooMuchAtOnce(BUSY_PROJECT, retry_after_s=1)
            if at.bytes_in_flight + size > at.max_in_flight_bytes:
                raise Overloaded("the server holds as many bytes as it can", retry_after_s=1)
            if self._project is not None:
                at.shares[self._project] = (count, held + size)
            at.bytes_in_flight += size
            self._bytes += size

    def leave(self) -> None:
        """Give everything back; more than once is no error."""
        at = self._at
        with at.lock:
            if self._project is not None:
                count, held = at.shares.pop(self._project)
                if count > 1:
                    at.shares[self._project] = (count - 1, held - self._bytes)
            at.bytes_in_flight -= self._bytes
            at.in_flight -= self._entered
            self._entered, self._project, self._bytes = False, None, 0


class AdmissionMiddleware:
    """The outermost layer of the service."""

    def __init__(self, app: ASGIApp, admission: Admission) -> None:
        self._app = app
        self._admission = admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        state = scope.setdefault("state", {})
        abort = state.get("hang_up", lambda: None)
        answer = _Answer(
            send, _request_id(headers), self._admission, abort, page=docs.is_public(scope["path"])
        )
        state["request_id"] = answer.request_id
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=answer.request_id)
        room = Reservation(self._admission)
        try:
            await self._serve(scope, receive, answer, headers, room)
        except HangUp as reason:
            log.warning("%s %s: the answer breaks off: %s", scope["method"], scope["path"], reason)
            await _hang_up(scope, receive)
        finally:
            answer.end_wait()
            room.leave()
            _record(scope, answer, quiet=_public(scope))

    async def _serve(
        self, scope: Scope, receive: Receive, answer: _Answer, headers: Headers, room: Reservation
    ) -> None:
        try:
            if scope["path"] not in PROBES:
                self._check_host(headers)
                self._check_origin(scope["method"], headers)
            if not _public(scope):
                await self._let_in(scope, answer, headers, room)
            await self._app(scope, receive, answer.send)
        except AnchorageError as error:  # raised here: those of a route are answered further in
            room.leave()  # what is thrown away takes none
            await self._refuse(error, scope, receive, answer.send)
        except HangUp:
            raise
        except Exception as fault:  # here and not further out, so that this answer too has its id and is counted as what it is
            if answer.begun:
                raise
            await problems.internal(Request(scope), fault)(scope, receive, answer.send)

    async def _let_in(
        self, scope: Scope, answer: _Answer, headers: Headers, room: Reservation
    ) -> None:
        """Who calls, and room for it. Event streams have limits of their own: they last."""
        lasting = EVENTS.fullmatch(scope["path"]) is not None
        if not lasting:
            room.enter()
        caller = await self._admit(scope, headers)
        state = scope["state"]
        context = RequestContext(
            caller.project,
            caller.key_id,
            answer.request_id,
            # `departures` puts it there, once the body has been read
            on_departure=lambda call: state.get("on_departure", lambda _: None)(call),
        )
        if not lasting:
            room.join(None if caller.key_id is None else caller.project)
            room.take(_body_bytes(headers, self._admission.max_body_bytes))
            context = replace(context, reserve_bytes=room.take)
        state.update(caller=caller, context=context)

    def _check_host(self, headers: Headers) -> None:
        """A page of the web that makes a browser call a service on loopback brings the page's own Host along."""
        if self._admission.hosts is None:
            return
        host = headers.get("host", "")
        name = host.rpartition(":")[0] if re.search(r":\d*$", host) else host
        if name.lower().strip("[]") not in self._admission.hosts:
            raise HostNotAllowed(
                "this server does not answer to that Host: ANCHORAGE_ALLOWED_HOSTS names those it does",
                field="Host",
            )

    def _check_origin(self, method: str, headers: Headers) -> None:
        """A page of another site can make a browser send a form here; where keys are asked for, it has none."""
        if self._admission.keys is not None or method in SAFE:
            return
        site, origin_ = headers.get("sec-fetch-site"), headers.get("origin")
        if site is None:  # an old browser, or no browser
            own = (
                origin_ is None
                or origin_.partition("://")[2].lower() == headers.get("host", "").lower()
            )
        else:
            own = site in OWN_SITE
        if not own:
            raise OriginNotAllowed(
                "without API keys, this server answers to no page of another site: ask it from a page of its own, "
                "from no browser, or with keys (ANCHORAGE_AUTH=keys)",
                field="Origin" if site is None else "Sec-Fetch-Site",
            )

    async def _admit(self, scope: Scope, headers: Headers) -> Caller:
        """Who calls, counted against its rate. Raises Unauthenticated, RateLimited and DatabaseUnavailable."""
        keys = self._admission.keys
        if keys is None:
            address = (scope.get("client") or ("",))[0]
            await self._admission.rates.count(f"address {address}", None)
            return Caller()
        text = _key(headers)
        if text is None:
            raise Unauthenticated("send an API key: Authorization: Bearer anc_..., or X-API-Key")
        caller = keys.recall(text) or await self._look_up(
            keys, text, (scope.get("client") or ("",))[0]
        )
        structlog.contextvars.bind_contextvars(key_id=caller.key_id)
        await self._admission.rates.count(f"key {caller.key_id}", caller.rate_limit)
        return caller

    async def _look_up(self, keys: KeyRing, text: str, address: str) -> Caller:
        """The caller of a key that the database must be asked about. Raises Unauthenticated, RateLimited, DatabaseUnavailable.

        A key that worked lately does not wait for a database that is slow, nor for the wrong keys of its address.
        """
        if not keys.knows(text):
            await self._admission.failed_keys.check(address)
        trusted = keys.outlast(text)
        with move_on_after(None if trusted is None else LOOK_UP_S):
            try:
                return await to_thread.run_sync(
                    keys.look_up,
                    text,
                    limiter=self._admission.threads,
                    abandon_on_cancel=trusted is not None,
                )
            except Unauthenticated:
                await self._admission.failed_keys.count(address)
                raise
        assert trusted is not None
        return trusted

    async def _refuse(
        self, error: AnchorageError, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer with the problem; the body is read and thrown away first, or the client would see its connection break."""
        scope["state"].get("refused", lambda: None)()  # its connection may be closed for another
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DISCARD_S):
                await _discard(receive, Headers(scope=scope), self._admission.max_body_bytes)
        response = problems.respond(Request(scope), error)
        await response(scope, receive, send)


class _Answer:
    """Watches an answer on its way out."""

    def __init__(
        self,
        send: Send,
        request_id: str,
        admission: Admission,
        abort: Callable[[], object],
        *,
        page: bool,
    ) -> None:
        self._send = send
        self._abort = abort
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._admission = admission
        self._page = page
        self.request_id = request_id
        self.started = time.perf_counter()
        #: what a request that never got an answer counts as
        self.status = UNANSWERED

    @property
    def begun(self) -> bool:
        return self.status != UNANSWERED

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-ID"] = self.request_id
            headers.raw.append((b"x-content-type-options", b"nosniff"))
            if self._page:
                headers.raw.extend(docs.SECURITY_HEADERS)
                headers.setdefault("Content-Security-Policy", docs.DENY_ALL_POLICY)
            if self._admission.stopping:
                headers["Connection"] = "close"
        data = message.get("body", b"")
        if self._timer is None or len(data) > PIECE_BYTES:
            self._wait_no_longer_than(ANSWER_S + len(data) / ANSWER_BYTES_PER_S)
        if len(data) > PIECE_BYTES:
            await self._send_pieces(message, memoryview(data))  # whose slices are no copies
        else:
            await self._send(message)
        if message["type"] == "http.response.body":
            self.end_wait()

    def end_wait(self) -> None:
        """What was sent has been taken: the client reads."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait_no_longer_than(self, seconds: float) -> None:
        self.end_wait()
        self._timer = self._loop.call_later(seconds, self._break_off)

    async def _send_pieces(self, message: Message, data: memoryview) -> None:
        *first, last = range(0, len(data), PIECE_BYTES)
        for start in first:
            await self._send(
                {**message, "body": data[start : start + PIECE_BYTES], "more_body": True}
            )
        await self._send({**message, "body": data[last:]})

    def _break_off(self) -> None:
        """Close the connection of a client that does not read its answer; nothing waits for it any longer."""
        log.warning("the client does not read its answer: its connection is closed")
        self._abort()


async def _hang_up(scope: Scope, receive: Receive) -> None:
    """Close the connection, and wait a while until it is closed: an answer without its end is no fault of the service then."""
    scope["state"].get("close", lambda: None)()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_S):
            while (await receive())["type"] != "http.disconnect":
                pass


class HangUp(Exception):
    """An answer that has begun cannot be ended properly: its connection is closed, which tells the client so."""


def _public(scope: Scope) -> bool:
    return scope["path"] in PROBES or docs.is_public(scope["path"])


def _record(scope: Scope, answer: _Answer, *, quiet: bool) -> None:
    """The metric and the log line of an answered request. Routes, not paths: names in paths are their owners' alone."""
    seconds = time.perf_counter() - answer.started
    route = getattr(scope.get("route"), "path", "none")
    method = scope["method"] if scope["method"] in METHODS else "other"
    _seconds(method, route, answer.status).observe(seconds)
    if not quiet and log.isEnabledFor(
        logging.INFO
    ):  # without a look for the caller's line, which is always this one
        values = (scope["method"], scope["path"], answer.status)
        extra = {"ms": round(seconds * 1000, 2)}
        log.handle(
            log.makeRecord(
                log.name, logging.INFO, __file__, 0, "%s %s %d", values, None, extra=extra
            )
        )


@lru_cache(maxsize=4096)
def _seconds(method: str, route: str, status: int) -> Histogram:
    return metrics.REQUEST_SECONDS.labels(method, route, str(status))


def _request_id(headers: Headers) -> str:
    given = headers.get("x-request-id", "")
    return given if given and REQUEST_ID.fullmatch(given) else os.urandom(16).hex()


def _key(headers: Headers) -> str | None:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    return headers.get("x-api-key")


def _body_bytes(headers: Headers, limit: int) -> int:
    """What a request's body may need: as declared, or the most there may be when it comes in chunks."""
    declared = headers.get("content-length", "")
    if declared.isdecimal():
        return min(int(declared), limit)
    return limit if "transfer-encoding" in headers else 0


async def _discard(receive: Receive, headers: Headers, limit: int) -> None:
    declared = headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared) > limit:
        return
    seen = 0
    while seen <= limit:
        message: dict[str, Any] = dict(await receive())
        seen += len(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body", False):
            return


def tell(admission: Admission) -> None:
    """Set the gauges of what is in flight."""
    metrics.IN_FLIGHT.set(admission.in_flight)
    metrics.IN_FLIGHT_BYTES.set(admission.bytes_in_flight)


async def keep_telling(admission: Admission) -> None:
    """Now and then, and not with each request: of several processes one is asked."""
    while True:
        tell(admission)
        await asyncio.sleep(SHOW_S)
