"""HTTP as uvicorn speaks it, with a bound on what comes before, between and after bodies: uvicorn's own has none."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.api.http import connections
from app.api.http.connections import Connections, most_connections
from app.observability import metrics

#: the request line, the headers, and whatever a chunked body brings along that is no body
HEAD_BYTES = 64 * 1024

#: the request line's address
ADDRESS_BYTES = 32 * 1024

#: connections of this process, unless the server says otherwise
CONNECTIONS = Connections(most_connections(None))


class BoundedHttp(HttpToolsProtocol):
    """A client that sends more than `HEAD_BYTES` of anything but body is told so, and its connection closed."""

    #: bytes since the last that were worth something: a whole head, or some body
    _idle = 0
    #: bytes of this request's address, and of its address, headers and trailers
    _address = _head = 0
    #: whether this request's head is whole: what comes later are trailers, which nobody reads
    _whole_head = False
    _wrong = "this is not HTTP/1.1"
    #: when the head is due
    _due: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, held: Connections = CONNECTIONS, **more: Any) -> None:
        super().__init__(*args, **more)
        self._held = held

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._held.add(self):
            self._expect_head()
        else:
            metrics.REFUSED.labels("too-many-connections").inc()
            self.hang_up()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._held.remove(self)
        self._stop_waiting()

    def hang_up(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Count before parsing; what parses resets the count."""
        self._idle += len(data)
        super().data_received(data)
        if self._idle > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("")
        if self.cycle is None or self.cycle.response_complete:
            self._expect_head()

    def on_message_begin(self) -> None:
        """A new request has headers of its own."""
        self._head = self._address = 0
        self._whole_head = False
        super().on_message_begin()
        # For the edge: a transport that is only closed waits for a client that does not read.
        self.scope["state"].update(hang_up=self.transport.abort, close=self.transport.close)
        self.scope["state"]["refused"] = partial(self._held.wait, self)

    def on_url(self, url: bytes) -> None:
        """Some of the address. What is raised here ends the parsing."""
        self._address += len(url)
        self._head += len(url)
        if self._address > ADDRESS_BYTES:
            raise ValueError("too long an address")
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or a trailer. What is raised here ends the parsing."""
        self._head += len(name) + len(value)
        if self._head > HEAD_BYTES:
            raise ValueError("too many headers")
        if not self._whole_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is whole. What is raised here ends the parsing."""
        self._idle = 0
        self._whole_head = True
        self._check_head()
        super().on_headers_complete()
        self._held.work(self)
        self._stop_waiting()

    def on_response_complete(self) -> None:
        """An answer is sent; another request may have come meanwhile."""
        super().on_response_complete()
        if self.cycle.response_complete:
            self._held.wait(self)

    def _check_head(self) -> None:
        """Raises ValueError for what a proxy may read in another way than this server does."""
        old = self.parser.get_http_version() != "1.1"
        hosts, encodings, length = 0, [], b"0"
        for name, value in self.headers:
            if name == b"host":
                hosts += 1
            elif name == b"transfer-encoding":
                encodings.append(value.lower())
            elif name == b"content-length":
                length = value
        if hosts > 1 or (hosts == 0 and not old):
            self._wrong = f"a request of HTTP/1.1 has one Host header, and this one has {hosts}"
        elif encodings and (old or encodings != [b"chunked"]):
            self._wrong = "the only Transfer-Encoding is chunked, of HTTP/1.1"
        elif self.parser.should_upgrade() and (
            encodings or length.strip(b"0")
        ):  # the parser would read no body
            self._wrong = (
                "a request with a body and an Upgrade: send it as HTTP/1.1, without Upgrade"
            )
        else:
            return
        raise ValueError(self._wrong)

    def _expect_head(self) -> None:
        if self._due is None and not self.transport.is_closing():
            self._due = self.loop.call_later(connections.HEAD_S, self._head_is_late)

    def _stop_waiting(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _head_is_late(self) -> None:
        self._due = None
        metrics.REFUSED.labels("head-too-slow").inc()
        self.hang_up()

    def on_body(self, body: bytes) -> None:
        self._idle = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._idle = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Say what was wrong as a problem document, if nothing has been answered yet, and hang up."""
        if self._address > ADDRESS_BYTES:
            status, code = HTTPStatus.REQUEST_URI_TOO_LONG, "address-too-long"
            detail = f"an address of more than {ADDRESS_BYTES} bytes: a query of this size belongs into the body"
        elif max(self._idle, self._head) > HEAD_BYTES:
            status, code = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "headers-too-large"
            detail = f"more than {HEAD_BYTES} bytes of headers, address or trailers"
        else:
            status, code, detail = HTTPStatus.BAD_REQUEST, "malformed-http", self._wrong
        metrics.REFUSED.labels(code).inc()
        _hang_up(
            self.transport,
            _problem(status, code, detail),
            begun=self.cycle is not None and not self.cycle.response_complete,
        )


def _hang_up(transport: asyncio.Transport, answer: bytes, *, begun: bool) -> None:
    """A request that is being answered already cannot get another answer."""
    if begun:
        transport.abort()
        return
    transport.write(answer)
    transport.close()


def _problem(status: HTTPStatus, code: str, detail: str) -> bytes:
    about = {
        "type": f"urn:anchorage:{code}",
        "title": status.phrase,
        "status": status.value,
        "code": code,
        "detail": detail,
    }
    body = json.dumps(about).encode()
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/problem+json\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"connection: close\r\n\r\n" + body
