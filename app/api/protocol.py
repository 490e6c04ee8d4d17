"""HTTP as uvicorn speaks it, with a bound on what comes before, between and after bodies: uvicorn's own has none."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app import telemetry

#: the request line, the headers, and whatever a chunked body brings along that is no body
HEAD_BYTES = 64 * 1024


class BoundedHttp(HttpToolsProtocol):
    """A client that sends more than `HEAD_BYTES` of anything but body is told so, and its connection closed."""

    #: bytes since the last that were worth something: a whole head, or some body
    _idle = 0
    #: bytes of this request's headers and trailers
    _head = 0

    def data_received(self, data: bytes) -> None:
        """Count before parsing; what parses resets the count."""
        self._idle += len(data)
        super().data_received(data)
        if self._idle > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("")

    def on_message_begin(self) -> None:
        """A new request has headers of its own."""
        self._head = 0
        super().on_message_begin()
        # For the edge: a transport that is only closed waits for a client that does not read.
        self.scope["state"].update(hang_up=self.transport.abort, close=self.transport.close)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or a trailer. What is raised here ends the parsing."""
        self._head += len(name) + len(value)
        if self._head > HEAD_BYTES:
            raise ValueError("too many headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._idle = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Some body."""
        self._idle = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._idle = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Say what was wrong as a problem document, if nothing has been answered yet, and hang up."""
        if max(self._idle, self._head) > HEAD_BYTES:
            status, code = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "headers-too-large"
            detail = f"more than {HEAD_BYTES} bytes of headers, address or trailers"
        else:
            status, code, detail = HTTPStatus.BAD_REQUEST, "malformed-http", "this is not HTTP/1.1"
        telemetry.REFUSED.labels(code).inc()
        _hang_up(
            self.transport, _problem(status, code, detail), begun=self.cycle is not None and not self.cycle.response_complete
        )


def _hang_up(transport: asyncio.Transport, answer: bytes, *, begun: bool) -> None:
    """A request that is being answered already cannot get another answer."""
    if begun:
        transport.abort()
        return
    transport.write(answer)
    transport.close()


def _problem(status: HTTPStatus, code: str, detail: str) -> bytes:
    about = {"type": f"urn:anchorage:{code}", "title": status.phrase, "status": status.value, "code": code, "detail": detail}
    body = json.dumps(about).encode()
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/problem+json\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"connection: close\r\n\r\n" + body
