"""The connections of one process: how many there are, and what each may send outside bodies.

uvicorn limits neither. Without a free file descriptor the process could not serve.
"""

from __future__ import annotations

import asyncio
import json
import resource
from contextvars import ContextVar
from http import HTTPStatus
from typing import Any, Protocol

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.http.docs import ERRORS_PATH
from app.ops import metrics

#: time for the first head of a connection, and for each later head from its first byte
HEAD_S = 10.0

#: most bytes of the request line, the headers and the parts of a chunked body that are not data
HEAD_BYTES = 64 * 1024

#: most bytes of the address in the request line
ADDRESS_BYTES = 32 * 1024

#: most connections by default, if `ulimit -n` allows more; each can hold 64 KiB of a head
MAX_CONNECTIONS = 4_096

#: most connections that wait to be accepted, if `ulimit -n` allows more
DEFAULT_BACKLOG = 2_048


class Closable(Protocol):
    """A connection."""

    def abort(self) -> None:
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
        if len(self._open) > self.most:
            oldest = next(iter(self._waiting), None)
            if oldest is None:
                return False
            del self._waiting[oldest]
            oldest.abort()
        self.wait(connection)
        return True

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


def max_connections() -> int:
    """Returns how many connections a process holds: at most half of its open files."""
    return min(_open_files() // 2, MAX_CONNECTIONS)


def backlog() -> int:
    """Returns how many connections may wait to be accepted: at most a quarter of the open files."""
    return min(_open_files() // 4, DEFAULT_BACKLOG)


def _open_files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft > 0 else 2**20


#: the connections of this process
PROCESS_CONNECTIONS = Connections(max_connections())


class BoundedHttp(HttpToolsProtocol):
    """Answers a client that sends more than HEAD_BYTES outside bodies, and hangs up.

    It overrides what asyncio calls of a protocol and httptools of a parser's listener.
    `AdmissionMiddleware` says when a request begins and ends.
    """

    #: bytes since the last complete head or part of a body
    _idle = 0
    #: bytes of this request's address; and of its address, headers and trailers
    _address = _head = 0
    #: whether this request's head is complete; headers after it are trailers, which are dropped
    _whole_head = False
    #: whether no request is being answered, so that the next bytes begin a head
    _waiting = True
    #: when the head is due
    _due: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, held: Connections = PROCESS_CONNECTIONS, **more: Any) -> None:
        super().__init__(*args, **more)
        self._held = held

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._to_client = transport
        if self._held.add(self):
            self._expect_head()
        else:
            metrics.REFUSALS.labels("too-many-connections").inc()
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._held.remove(self)
        self._stop_waiting()

    def abort(self) -> None:
        """Closes the connection at once: close() would wait for a client that does not read."""
        self._to_client.abort()

    def work(self) -> None:
        """Notes that a request is being answered."""
        self._waiting = False
        self._held.work(self)
        self._stop_waiting()

    def wait(self) -> None:
        """Notes that the answer has been sent. The next bytes begin a head."""
        self._waiting = True
        self._held.wait(self)

    def may_be_replaced(self) -> None:
        """Notes that the request is refused, and only its body is still read."""
        self._held.wait(self)

    def data_received(self, data: bytes) -> None:
        """Counts bytes before they are parsed; complete heads and bodies reset the count."""
        CONNECTION.set(self)  # the task that answers a request inherits it
        self._idle += len(data)
        super().data_received(data)
        if self._idle > HEAD_BYTES and not self._to_client.is_closing():
            self.send_400_response("")
        if self._waiting:
            self._expect_head()

    def on_message_begin(self) -> None:
        """Starts the counts of a new request."""
        self._head = self._address = 0
        self._whole_head = False
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Counts a part of the address. An exception ends the parsing."""
        self._address += len(url)
        self._head += len(url)
        if self._address > ADDRESS_BYTES:
            raise ValueError("the address is too long")
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Counts a header or a trailer. An exception ends the parsing."""
        self._head += len(name) + len(value)
        if self._head > HEAD_BYTES:
            raise ValueError("the headers are too long")
        if not self._whole_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Ends the counts of the head. The request's task then calls `work`."""
        self._idle = 0
        self._whole_head = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._idle = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._idle = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Sends a problem document, unless an answer has begun, and closes the connection."""
        if self._address > ADDRESS_BYTES:
            status, code = HTTPStatus.REQUEST_URI_TOO_LONG, "address-too-long"
            detail = f"The address has more than {ADDRESS_BYTES} bytes. Send the data in the body."
        elif max(self._idle, self._head) > HEAD_BYTES:
            status, code = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "headers-too-large"
            detail = f"The address, headers and trailers have more than {HEAD_BYTES} bytes."
        else:
            status, code = HTTPStatus.BAD_REQUEST, "malformed-http"
            detail = "The request is not valid HTTP/1.1."
        metrics.REFUSALS.labels(code).inc()
        if self._waiting:
            self._to_client.write(_problem(status, code, detail))
            self._to_client.close()
        else:
            self.abort()

    def _expect_head(self) -> None:
        if self._due is None and not self._to_client.is_closing():
            loop = asyncio.get_running_loop()
            self._due = loop.call_later(HEAD_S, self._head_is_late)

    def _stop_waiting(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _head_is_late(self) -> None:
        self._due = None
        metrics.REFUSALS.labels("head-too-slow").inc()
        self.abort()


#: the connection of the request that a task answers; None: another server than ours
CONNECTION: ContextVar[BoundedHttp | None] = ContextVar("connection", default=None)


def _problem(status: HTTPStatus, code: str, detail: str) -> bytes:
    about = {
        "type": f"{ERRORS_PATH}#{code}",
        "title": status.phrase,
        "status": status.value,
        "code": code,
        "detail": detail,
    }
    body = json.dumps(about).encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        "content-type: application/problem+json\r\n"
        f"content-length: {len(body)}\r\n"
        "connection: close\r\n\r\n"
    )
    return head.encode() + body
