"""Connections that never say what they want take no place from those that do."""

from __future__ import annotations

import http.client
import socket
import time
from contextlib import ExitStack, closing

from app.http.connections import BoundedHttp
from tests.waiting import slack

HALF = b"GET /livez HTTP/1.1\r\nHost: 127"
POST = (
    b"POST /encoders HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Expect: 100-continue\r\nContent-Length: 20\r\n\r\n"
)
BODY = b'{"name":"x","dim":2}'
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def closed(connection: socket.socket) -> bool:
    """Whether the server hangs up, sooner or later."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_new_connection_replaces_one_that_is_idle_and_none_that_is_answered(
    listen, monkeypatch
) -> None:
    """Hundreds of half heads locked everybody out for as long as they stayed."""
    monkeypatch.setattr(BoundedHttp, "most", 3)
    address = listen()
    with ExitStack() as stack:

        def connect() -> socket.socket:
            return stack.enter_context(socket.create_connection(address, timeout=20))

        slow = connect()
        slow.sendall(POST + BODY[:5])
        assert slow.recv(len(CONTINUE), socket.MSG_WAITALL) == CONTINUE
        for _ in range(12):
            connect().sendall(HALF)
        begun = time.monotonic()
        client = stack.enter_context(closing(http.client.HTTPConnection(*address, timeout=20)))
        client.request("GET", "/livez")
        assert client.getresponse().read()
        assert time.monotonic() - begun < slack() * 5
        slow.sendall(BODY[5:])
        assert slow.recv(20).startswith(b"HTTP/1.1 201 ")


def test_beside_connections_that_are_all_answered_a_new_one_is_closed(listen, monkeypatch) -> None:
    monkeypatch.setattr(BoundedHttp, "most", 1)
    address = listen()
    with socket.create_connection(address, timeout=20) as slow:
        slow.sendall(POST + BODY[:5])
        assert slow.recv(len(CONTINUE), socket.MSG_WAITALL) == CONTINUE
        with socket.create_connection(address, timeout=20) as late:
            assert closed(late)
        slow.sendall(BODY[5:])
        assert slow.recv(20).startswith(b"HTTP/1.1 201 ")
