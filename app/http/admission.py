"""The edge: admits or refuses each request before a route sees it, and sends its answer.

It checks Host, Origin, key, rate and memory. The middleware is plain ASGI outside the framework, so
that a refusal is cheap and keeps no body.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from http import HTTPStatus
from typing import Any

from anyio import CapacityLimiter
from fastapi import Request
from prometheus_client import Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.context import Caller, RequestContext
from app.errors import AnchorageError, HostNotAllowed, OriginNotAllowed, Unauthenticated
from app.http import bodies, docs, problems
from app.ops import logs, metrics
from app.turns import Turns

log = logging.getLogger("anchorage.request")

#: paths that need no key: they show no project's data
PROBE_PATHS = frozenset({"/livez", "/readyz"})

CONSOLE = "/console"
SIGN_IN = f"{CONSOLE}/sign-in"
ASSETS = f"{CONSOLE}/static"

#: the cookie that holds the API key, which only requests below CONSOLE carry
COOKIE = "anchorage_key"

#: pages load only files of the service, and run no inline script and no inline style
CONSOLE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)

#: methods that metrics label by name; clients can send any text
COUNTED_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

#: the status of a request whose client left before its answer, as in nginx
UNANSWERED = 499

#: methods that change nothing: a page of another site can send them, but cannot read the answer
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
#: values of Sec-Fetch-Site for requests of the service's own pages, and of the user
OWN_SITE = frozenset({"same-origin", "none"})

#: request ids that clients may choose
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

#: seconds between updates of the gauges
GAUGES_EVERY_S = 1.0


@dataclass
class Admission:
    """What decides whether the server admits a request.

    find_key  returns the caller of a key; None: the server requires no key
    hosts     accepted names in the Host header; None: any name
    stopping  the server reports it in /readyz, and closes connections after their answer
    parsing   for large bodies of JSON, one at a time
    """

    find_key: Callable[[str], Awaitable[Caller]] | None
    hosts: frozenset[str] | None
    max_body_bytes: int
    max_json: int
    requests: Turns
    #: bytes of the bodies and answers of these requests
    bytes: Turns
    stopping: bool = False
    parsing: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(1))

    def is_public(self, scope: Scope) -> bool:
        """Whether the request needs no key."""
        path = scope["path"]
        return (
            path in PROBE_PATHS
            or _is_docs(path)
            or path == SIGN_IN
            or path.startswith(f"{ASSETS}/")
        )

    def is_quiet(self, scope: Scope, status: int) -> bool:
        """Whether the log leaves the request out. It has every sign-in and every refused one."""
        if not is_console(scope["path"]):
            return self.is_public(scope)
        read = status < HTTPStatus.MULTIPLE_CHOICES or status == HTTPStatus.NOT_MODIFIED
        return read and scope["method"] in SAFE_METHODS

    async def find_caller(self, text: str | None) -> Caller:
        """Returns the caller who sends this key. Raises Unauthenticated."""
        if self.find_key is None:
            return Caller()
        if text is None:
            raise Unauthenticated(
                "The request has no API key. Send `Authorization: Bearer anc_...` or `X-API-Key`."
            )
        caller = await self.find_key(text)
        logs.BOUND.set({**logs.BOUND.get({}), "key_id": caller.key_id})
        return caller


class AnswerSender:
    """Sends one answer with the service's headers.

    stopping  whether the server stops, so that connections close after their answer
    policy    the Content-Security-Policy of a page that sets none; None: the answer is no page
    """

    def __init__(self, send: Send, request_id: str, *, stopping: bool, policy: str | None) -> None:
        self._send = send
        self._stopping = stopping
        self._policy = policy
        self.request_id = request_id
        self.started = time.perf_counter()
        self.status = UNANSWERED

    @property
    def begun(self) -> bool:
        """Whether the status has been sent."""
        return self.status != UNANSWERED

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-ID"] = self.request_id
            headers.raw.append((b"x-content-type-options", b"nosniff"))
            if self._policy is not None:
                headers.raw.extend(docs.SECURITY_HEADERS)
                headers.setdefault("Content-Security-Policy", self._policy)
            if self._stopping:
                headers["Connection"] = "close"
        await self._send(message)

    def record(self, scope: Scope, *, quiet: bool) -> None:
        """Records the metric, and the log line unless `quiet`.

        The metric is labelled by route, because paths hold names that belong to projects.
        """
        seconds = time.perf_counter() - self.started
        route = getattr(scope.get("route"), "path", "none")
        method = scope["method"] if scope["method"] in COUNTED_METHODS else "other"
        _duration_histogram(method, route, self.status).observe(seconds)
        if not quiet:
            values = (scope["method"], scope["path"], self.status)
            log.info("%s %s %d", *values, extra={"ms": round(seconds * 1000, 2)})


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
        answer = AnswerSender(
            send,
            _request_id(headers),
            stopping=self._admission.stopping,
            policy=self._policy(scope),
        )
        state["request_id"] = answer.request_id
        logs.BOUND.set({"request_id": answer.request_id})
        try:
            with ExitStack() as held:
                await self._serve(scope, receive, answer, headers, held)
        finally:
            answer.record(scope, quiet=self._admission.is_quiet(scope, answer.status))

    async def _serve(
        self,
        scope: Scope,
        receive: Receive,
        answer: AnswerSender,
        headers: Headers,
        held: ExitStack,
    ) -> None:
        try:
            if (fault := _framing_fault(scope)) is not None:
                metrics.REFUSALS.labels("malformed-http").inc()
                refusal = problems.problem(
                    Request(scope), HTTPStatus.BAD_REQUEST, "malformed-http", fault
                )
                refusal.headers["Connection"] = "close"  # the rest may be another request
                await refusal(scope, receive, answer.send)
                return
            if scope["path"] not in PROBE_PATHS:
                self._check_host(headers)
                self._check_origin(scope, headers)
            if not self._admission.is_public(scope):
                await self._admit(scope, answer, headers, held)
            elif is_console(scope["path"]) and scope["method"] not in SAFE_METHODS:
                held.enter_context(self._admission.requests.take(""))  # of no project
            await self._app(scope, receive, answer.send)
        except AnchorageError as error:  # from here: the framework answers those of routes
            held.close()  # a discarded body takes no memory
            await self._refuse(error, scope, receive, answer.send)
        except Exception as fault:  # here, so that this answer has its id, metric and log line too
            if answer.begun:
                raise
            await problems.internal(Request(scope), fault)(scope, receive, answer.send)

    async def _admit(
        self, scope: Scope, answer: AnswerSender, headers: Headers, held: ExitStack
    ) -> None:
        """Finds the caller, reserves memory, and stores the request's context in the scope."""
        admission, state = self._admission, scope["state"]
        caller = await admission.find_caller(_key(headers, cookie=is_console(scope["path"])))
        held.enter_context(admission.requests.take(caller.project))
        left = admission.bytes.at_once // 2  # what one request reserves at most

        def reserve_bytes(size: int) -> None:
            nonlocal left
            if (size := min(size, left)) > 0:
                held.enter_context(admission.bytes.take(caller.project, amount=size))
                left -= size

        reserve_bytes(_body_bytes(headers, admission.max_body_bytes))
        state["context"] = RequestContext(
            caller.project,
            caller.key_id,
            caller.scopes,
            answer.request_id,
            # `watch_departure` stores it, after the body has been read
            on_departure=lambda call: state.get("on_departure", lambda _: None)(call),
            reserve_bytes=reserve_bytes,
        )

    def _check_host(self, headers: Headers) -> None:
        """Raises HostNotAllowed: a page that makes a browser call loopback sends its own Host."""
        if self._admission.hosts is None:
            return
        host = headers.get("host", "")
        name = host.rpartition(":")[0] if re.search(r":\d*$", host) else host
        if name.lower().strip("[]") not in self._admission.hosts:
            raise HostNotAllowed(
                "The server does not accept this Host header. Use 127.0.0.1 or localhost, or add "
                "the name to ANCHORAGE_ALLOWED_HOSTS.",
                field="Host",
            )

    def _check_origin(self, scope: Scope, headers: Headers) -> None:
        """Raises OriginNotAllowed: a page of another site could send a form.

        Browsers send it with the console's cookie, and without keys it needs none. Such a page
        may open a page of the console by a link, and may ask for no part of one.
        """
        console = is_console(scope["path"])
        if scope["method"] in SAFE_METHODS:
            if not console or _follows_link(headers):
                return
        elif not console and self._admission.find_key is not None:
            return
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        if site is None:  # an old browser, or another client
            own = (
                origin is None
                or origin.partition("://")[2].lower() == headers.get("host", "").lower()
            )
        else:
            own = site in OWN_SITE
        if not own:
            raise OriginNotAllowed(
                "Pages of other sites may only link to the console. Open the console itself."
                if console
                else "A server without API keys accepts no requests from pages of other sites. "
                "Serve the page from the same host, or require keys with ANCHORAGE_AUTH=keys.",
                field="Origin" if site is None else "Sec-Fetch-Site",
            )

    def _policy(self, scope: Scope) -> str | None:
        """Returns the Content-Security-Policy of a page; None for other answers."""
        if is_console(scope["path"]):
            return CONSOLE_POLICY
        return docs.DENY_ALL_POLICY if _is_docs(scope["path"]) else None

    async def _refuse(
        self, error: AnchorageError, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Discards the body, as a client that still sends would not read, and answers."""
        with suppress(TimeoutError):
            async with asyncio.timeout(bodies.DISCARD_S):
                await _discard(receive, Headers(scope=scope), 2 * self._admission.max_body_bytes)
        response = problems.respond(Request(scope), error)
        await response(scope, receive, send)


def is_console(path: str) -> bool:
    """Whether the path is a page or a file of the console."""
    return path == CONSOLE or path.startswith(f"{CONSOLE}/")


def _is_docs(path: str) -> bool:
    """Whether the path belongs to the documentation or redirects to it."""
    return path in docs.PATHS or path.startswith(f"{docs.STATIC}/")


def set_gauges(admission: Admission) -> None:
    """Sets the gauges of requests and bytes in flight."""
    metrics.IN_FLIGHT.set(admission.requests.held)
    metrics.IN_FLIGHT_BYTES.set(admission.bytes.held)


async def refresh_gauges(admission: Admission) -> None:
    """Sets the gauges every second: /metrics of several processes reads the gauges of all."""
    while True:
        set_gauges(admission)
        await asyncio.sleep(GAUGES_EVERY_S)


def _follows_link(headers: Headers) -> bool:
    """Whether a browser opens a whole page, in no frame."""
    return (
        headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest", "document") == "document"
    )


def _framing_fault(scope: Scope) -> str | None:
    """Returns what is wrong with a head that a proxy may understand differently; else None."""
    old = scope["http_version"] != "1.1"
    hosts, encodings, upgrades, length = 0, [], False, b"0"
    for name, value in scope["headers"]:
        if name == b"host":
            hosts += 1
        elif name == b"transfer-encoding":
            encodings.append(value.lower())
        elif name == b"content-length":
            length = value
        elif name == b"connection":
            upgrades = b"upgrade" in value.lower()
    if hosts > 1 or (hosts == 0 and not old):
        return f"A request must have one Host header. This one has {hosts}."
    if encodings and (old or encodings != [b"chunked"]):
        return "The only Transfer-Encoding that this server reads is chunked, in HTTP/1.1."
    if upgrades and (encodings or length.strip(b"0")):
        return "A request with a body cannot have an Upgrade header. Remove Upgrade."
    return None


def _request_id(headers: Headers) -> str:
    sent = headers.get("x-request-id", "")
    return sent if REQUEST_ID.fullmatch(sent) else os.urandom(16).hex()


def _key(headers: Headers, *, cookie: bool) -> str | None:
    """Returns the API key of the headers, or of the cookie where that counts."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    if (key := headers.get("x-api-key")) or not cookie:
        return key
    # Python's own parser would drop the key behind another program's cookie.
    return cookie_parser(headers.get("cookie", "")).get(COOKIE) or None


def _body_bytes(headers: Headers, limit: int) -> int:
    """Returns the declared length of the body, and the limit for a chunked one."""
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


@lru_cache(maxsize=4096)
def _duration_histogram(method: str, route: str, status: int) -> Histogram:
    return metrics.REQUEST_SECONDS.labels(method, route, str(status))
