"""Connections that never say what they want take no place from those that do."""

from __future__ import annotations

import http.client
import json
import os
import resource
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from app.demo.client import free_port
from app.http import bodies, connections
from app.http.connections import Connections
from tests.waiting import slack

HALF = b"GET /livez HTTP/1.1\r\nHost: 127"
FILES = 256


class Connection:
    def __init__(self, held: Connections) -> None:
        self.held, self.open = held, True

    def abort(self) -> None:
        self.open = False


def test_the_connection_that_has_waited_longest_is_closed_for_a_new_one() -> None:
    held = Connections(3)
    first, second, third, fourth, fifth = made = [Connection(held) for _ in range(5)]
    for each in (first, second, third):
        assert held.add(each)
    held.work(first)
    held.work(second)
    held.wait(first)  # so the third has waited longer
    assert held.add(fourth)
    assert [each.open for each in made] == [True, True, False, True, True]
    held.remove(third)
    assert held.add(fifth)
    assert not first.open


def test_a_connection_on_which_a_request_is_answered_is_closed_for_nobody() -> None:
    held = Connections(2)
    busy = [Connection(held) for _ in range(2)]
    for each in busy:
        assert held.add(each)
        held.work(each)
    late = Connection(held)
    assert not held.add(late)
    assert all(each.open for each in busy)
    held.remove(late)
    held.remove(busy[0])
    assert held.add(Connection(held))


def test_one_that_is_closed_waits_for_nothing() -> None:
    held = Connections(1)
    gone, other = Connection(held), Connection(held)
    held.add(gone)
    held.remove(gone)
    held.wait(gone)  # its answer ended after its connection
    held.add(other)
    assert gone.open


def test_no_more_connections_than_half_of_the_files() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert connections.max_connections() == min(soft // 2, 4096)
    assert connections.backlog() <= soft // 4


# --- over sockets ---------------------------------------------------------------------------------


def closed(connection: socket.socket) -> bool:
    """Whether the server hangs up, sooner or later."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "sent", [b"", b"G", HALF, b"\r\n", b"GET /livez HTTP/1.1\r\n" + b"x: y\r\n" * 500]
)
def test_a_head_that_does_not_become_whole_is_not_waited_for(listen, monkeypatch, sent) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.3)
    with socket.create_connection(listen(), timeout=20) as connection:
        connection.sendall(sent)
        assert closed(connection)


def test_nor_is_a_later_one_on_the_same_connection(listen, monkeypatch) -> None:
    """Its first byte ends the time that an idle connection has."""
    monkeypatch.setattr(connections, "HEAD_S", 0.3)
    address = listen()
    for more in (HALF, b"\r\n"):
        with closing(http.client.HTTPConnection(*address, timeout=20)) as client:
            client.request("GET", "/livez")
            assert client.getresponse().read()
            time.sleep(0.6)  # longer than a head may take: an idle connection stays
            client.request("GET", "/livez")
            assert client.getresponse().read()
            client.sock.sendall(more)
            assert closed(client.sock)


def test_a_head_that_comes_byte_by_byte_is_not_waited_for_longer(listen, monkeypatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.5)
    with socket.create_connection(listen(), timeout=20) as connection:
        sent = 0
        with suppress(ConnectionError):
            for sent in range(1000):
                connection.sendall((HALF + b"a" * 1000)[sent : sent + 1])
                time.sleep(0.02)
        assert sent < 500


def test_a_request_that_takes_longer_than_a_head_may_is_answered(listen, monkeypatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.2)
    body = json.dumps({"name": "x", "dim": 2}).encode()
    with socket.create_connection(listen(), timeout=20) as connection:
        head = (
            "POST /encoders HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}"
        )
        connection.sendall(head.encode() + b"\r\n\r\n" + body[:5])
        time.sleep(0.6)
        connection.sendall(body[5:])
        assert connection.recv(20).startswith(b"HTTP/1.1 201 ")


def test_requests_without_a_key_hold_no_connection_while_their_bodies_are_thrown_away(
    listen, monkeypatch
) -> None:
    host, port = listen(auth="keys")
    monkeypatch.setattr(connections.PROCESS_CONNECTIONS, "most", 5)
    with ExitStack() as stack:
        for _ in range(12):
            half = stack.enter_context(socket.create_connection((host, port), timeout=20))
            half.sendall(
                b"POST /encoders HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{"
            )
        begun = time.monotonic()
        assert ask(port, "/livez") == 200
        assert time.monotonic() - begun < slack() * (bodies.DISCARD_S / 2)


def test_a_request_that_is_answered_is_closed_for_nobody(listen, monkeypatch) -> None:
    host, port = listen()
    monkeypatch.setattr(connections.PROCESS_CONNECTIONS, "most", 2)
    body = json.dumps({"name": "x", "dim": 2}).encode()
    with ExitStack() as stack:
        slow = stack.enter_context(socket.create_connection((host, port), timeout=20))
        head = (
            "POST /encoders HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}"
        )
        slow.sendall(head.encode() + b"\r\nExpect: 100-continue\r\n\r\n" + body[:5])
        assert slow.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        others = [
            stack.enter_context(socket.create_connection((host, port), timeout=20))
            for _ in range(8)
        ]
        assert ask(port, "/livez") == 200
        assert closed(others[0])
        slow.sendall(body[5:])
        assert slow.recv(20).startswith(b"HTTP/1.1 201 ")


@pytest.fixture
def served(tmp_path: Path):
    """`anchorage serve` with few files; its port and its process."""
    port = free_port()
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ANCHORAGE_")}
    settings = {
        "ANCHORAGE_DATA_DIR": str(tmp_path),
        "ANCHORAGE_PORT": str(port),
        "ANCHORAGE_THREADS": "1",
    }
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            ["prlimit", f"--nofile={FILES}:{FILES}", sys.executable, "-m", "app.cli", "serve"],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**clean, **settings},
        )
    try:
        deadline = time.monotonic() + 60 * slack()
        while ask(port) != 200:
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.05)
        yield port, process
    finally:
        process.kill()
        process.wait()


def ask(port: int, path: str = "/readyz") -> Any:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as client:
        try:
            client.request("GET", path)
            return client.getresponse().status
        except OSError as error:
            return error


def files_of(process: subprocess.Popen[bytes]) -> int:
    return len(list(Path(f"/proc/{process.pid}/fd").iterdir()))


def test_hundreds_of_half_sent_heads_lock_nobody_out(served) -> None:
    """400 of them, where 256 files may be open, refused everybody for as long as they stayed."""
    port, process = served
    before = files_of(process)
    with ExitStack() as stack:
        for _ in range(400):
            half = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            half.sendall(HALF)
        for path in ("/livez", "/readyz", "/encoders"):
            begun = time.monotonic()
            assert ask(port, path) == 200
            assert time.monotonic() - begun < slack() * 2
        assert files_of(process) < FILES // 2 + before + 10
    deadline = time.monotonic() + 20 * slack()
    while files_of(process) > before + 5:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert ask(port, "/encoders") == 200
