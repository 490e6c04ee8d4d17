"""The connections of one process: how many there are, and what each may send outside bodies.

uvicorn limits neither, and without a free file descriptor the process could not serve. Clients that
send or read slowly are the work of a proxy.
"""

from __future__ import annotations

import asyncio
import resource
from http import HTTPStatus

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.http import media_types
from app.http.docs import ERRORS_PATH
from app.ops import metrics

#: most bytes of the request line and the headers, of trailers, and of a chunk's extensions
HEAD_BYTES = 32 * 1024

#: most connections, if `ulimit -n` allows twice as many files
MAX_CONNECTIONS = 4_096

#: most connections that wait to be accepted, if `ulimit -n` allows four times as many files
BACKLOG = 2_048


def open_files() -> int:
    """Returns how many files the process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft > 0 else 2**20


class BoundedHttp(HttpToolsProtocol):
    """Hangs up on a client whose head is too large."""

    most = min(open_files() // 2, MAX_CONNECTIONS)
    #: bytes since the last complete head or part of a body
    _between = 0

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accepts the connection; above the limit, in place of one that answers no request."""
        super().connection_made(transport)
        if len(self.connections) > self.most:
            metrics.REFUSALS.labels("too-many-connections").inc()
            idle = (
                each
                for each in self.connections
                if isinstance(each, BoundedHttp) and each is not self and each._is_idle
            )
            next(idle, self).transport.abort()

    def data_received(self, data: bytes) -> None:
        """Counts the bytes; complete heads and parts of bodies start again from 0."""
        self._between += len(data)
        super().data_received(data)
        if self._between > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("")

    def on_headers_complete(self) -> None:
        """Begins the request. An exception ends the parsing, and leads to `send_400_response`."""
        head = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if head > HEAD_BYTES:
            self._between = head
            raise ValueError("the head is too large")
        self._between = 0
        super().on_headers_complete()
        self.headers = []  # trailers do not become headers of the request

    def on_body(self, body: bytes) -> None:
        self._between = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._between = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Sends a problem document, unless another answer has begun, and closes."""
        if self._between > HEAD_BYTES:
            status, code = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "headers-too-large"
            detail = f"The address, headers and trailers have more than {HEAD_BYTES} bytes."
        else:
            status, code = HTTPStatus.BAD_REQUEST, "malformed-http"
            detail = "The request is not valid HTTP/1.1."
        metrics.REFUSALS.labels(code).inc()
        if not self._is_idle and self.cycle.response_started:
            self.transport.abort()
            return
        body = orjson.dumps(
            {
                "type": f"{ERRORS_PATH}#{code}",
                "title": status.phrase,
                "status": status.value,
                "code": code,
                "detail": detail,
            }
        )
        self.transport.write(
            f"HTTP/1.1 {status.value} {status.phrase}\r\n"
            f"content-type: {media_types.PROBLEM}\r\n"
            f"content-length: {len(body)}\r\n"
            "connection: close\r\n\r\n".encode()
            + body
        )
        self.transport.close()
