"""A connection of HTTP/1.1 to an endpoint, which sends one request after another.

It posts and reads answers of a limited size, and no more: it follows no redirect, reads no proxy
from the environment, and stores no cookie. For a request and its answer httpcore2 takes 1 ms of
CPU, aiohttp .3 ms, and this connection .06 ms: a name before an endpoint adds them to each request.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from typing import cast
from urllib.parse import urlsplit

import httptools

from app.errors import EncoderFailed

#: status, body, and the seconds of the header Retry-After
Answer = tuple[int, bytes, float | None]


async def connect(url: str, tls: ssl.SSLContext | None) -> Connection:
    """Connect to the host of a URL. Raises OSError and UnicodeError."""
    at, loop = urlsplit(url), asyncio.get_running_loop()
    host, port = at.hostname or "", at.port or (80 if tls is None else 443)
    return (await loop.create_connection(Connection, host, port, ssl=tls))[1]


class Connection(asyncio.Protocol):
    """One connection, in the event loop that opened it."""

    #: whether it can send a request, and since when
    is_idle = True
    idle_since = 0.0
    _answer: asyncio.Future[Answer] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    async def send(self, request: bytes, most: int) -> Answer:
        """Return the response. Raises EncoderFailed for one of more than `most` bytes, and OSError
        or httptools.HttpParserError for an incomplete or invalid one.
        """
        if not self.is_idle:
            raise ConnectionResetError
        self._parser = httptools.HttpResponseParser(self)
        self._body, self._most, self._left = bytearray(), most, most
        self._retry_after_s: float | None = None
        self._has_length = self._has_head = False
        self._answer = asyncio.get_running_loop().create_future()
        self.is_idle = False
        self._transport.write(request)
        try:
            return await self._answer
        finally:
            self._answer = None
            if not self.is_idle:  # the rest of this answer must not become the next one
                self.close()

    def close(self) -> None:
        self.is_idle = False
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._answer is None:  # an answer without a request
            self.close()
            return
        self._left -= len(data)
        if self._left < 0:
            self._fail(
                EncoderFailed(
                    f"The endpoint's answer has more than {self._most} bytes, which is the limit "
                    "for these inputs. Check what it serves."
                )
            )
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(error)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_idle = False
        if self._answer is not None and self._has_head and not self._has_length:
            self._succeed()  # the end of the connection is that of the body
        self._fail(error or ConnectionResetError())

    def on_message_begin(self) -> None:
        if self._answer is not None and self._answer.done():  # a second one
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self._has_length |= name in (b"content-length", b"transfer-encoding")
        if name == b"retry-after" and re.fullmatch(rb"[0-9]{1,6}", value):
            self._retry_after_s = float(value)

    def on_headers_complete(self) -> None:
        self._has_head = self._parser.get_status_code() >= 200

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        if self._has_head and self._answer is not None and not self._answer.done():
            self.is_idle, self.idle_since = self._parser.should_keep_alive(), time.monotonic()
            self._succeed()

    def _succeed(self) -> None:
        if self._answer is not None and not self._answer.done():
            status = self._parser.get_status_code()
            self._answer.set_result((status, bytes(self._body), self._retry_after_s))

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
