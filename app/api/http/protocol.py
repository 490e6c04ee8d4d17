"""uvicorn's HTTP/1.1 protocol, with limits for heads and trailers, which uvicorn lacks."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.api.docs import ERRORS_PATH
from app.api.http.limits import connections
from app.api.http.limits.connections import Connections, most_connections
from app.observability import metrics

#: most bytes of the request line, the headers and the parts of a chunked body that are not data
HEAD_BYTES = 64 * 1024

#: most bytes of the address in the request line
ADDRESS_BYTES = 32 * 1024

#: the connections of this process, unless the server sets others
PROCESS_CONNECTIONS = Connections(most_connections(None))


class BoundedHttp(HttpToolsProtocol):
    """Answers a client that sends more than HEAD_BYTES outside bodies, and hangs up."""

    #: bytes since the last complete head or part of a body
    _idle = 0
    #: bytes of this request's address; and of its address, headers and trailers
    _address = _head = 0
    #: whether this request's head is complete; headers after it are trailers, which are dropped
    _whole_head = False
    _wrong = "The request is not valid HTTP/1.1."
    #: when the head is due
    _due: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, held: Connections = PROCESS_CONNECTIONS, **more: Any) -> None:
        super().__init__(*args, **more)
        self._held = held

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._held.add(self):
            self._expect_head()
        else:
            metrics.REFUSALS.labels("too-many-connections").inc()
            self.hang_up()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._held.remove(self)
        self._stop_waiting()

    def hang_up(self) -> None:
        """Closes the connection at once."""
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Counts bytes before they are parsed; complete heads and bodies reset the count."""
        self._idle += len(data)
        super().data_received(data)
        if self._idle > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("")
        if self.cycle is None or self.cycle.response_complete:
            self._expect_head()

    def on_message_begin(self) -> None:
        """Starts the counts of a new request."""
        self._head = self._address = 0
        self._whole_head = False
        super().on_message_begin()
        # For AdmissionMiddleware: close() would wait for a client that does not read.
        self.scope["state"].update(hang_up=self.transport.abort, close=self.transport.close)
        self.scope["state"]["refused"] = partial(self._held.wait, self)

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
        """Checks the complete head. An exception ends the parsing."""
        self._idle = 0
        self._whole_head = True
        self._check_head()
        super().on_headers_complete()
        self._held.work(self)
        self._stop_waiting()

    def on_response_complete(self) -> None:
        """Lets the connection wait, unless another request has already arrived."""
        super().on_response_complete()
        if self.cycle.response_complete:
            self._held.wait(self)

    def _check_head(self) -> None:
        """Raises ValueError for a head that a proxy may understand differently."""
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
            self._wrong = f"A request must have one Host header. This one has {hosts}."
        elif encodings and (old or encodings != [b"chunked"]):
            self._wrong = (
                "The only Transfer-Encoding that this server reads is chunked, in HTTP/1.1."
            )
        elif self.parser.should_upgrade() and (encodings or length.strip(b"0")):
            # The parser would not read the body.
            self._wrong = "A request with a body cannot have an Upgrade header. Remove Upgrade."
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
        metrics.REFUSALS.labels("head-too-slow").inc()
        self.hang_up()

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
            status, code, detail = HTTPStatus.BAD_REQUEST, "malformed-http", self._wrong
        metrics.REFUSALS.labels(code).inc()
        _hang_up(
            self.transport,
            _problem(status, code, detail),
            begun=self.cycle is not None and not self.cycle.response_complete,
        )


def _hang_up(transport: asyncio.Transport, answer: bytes, *, begun: bool) -> None:
    """Sends the answer and closes the connection; aborts it if another answer has begun."""
    if begun:
        transport.abort()
        return
    transport.write(answer)
    transport.close()


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
