"""A Redis that is full, read-only, silent or not Redis costs time, but no answer."""

from __future__ import annotations

import itertools
import shutil
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
import redis
import torch
from starlette.testclient import TestClient

from app.db import redis as connect
from app.main import create_app
from app.maths.geometry.space import fit_space
from app.maths.translators.methods import fit, resolve
from app.maths.translators.translator import apply
from app.settings import Settings
from tests.waiting import slack

GREETING = b"%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:3\r\n"


def say(answer: bytes) -> Callable[[socket.socket], None]:
    """The same answer to whatever comes."""
    return lambda sock: sock.sendall(answer)


def end(answer: bytes) -> Callable[[socket.socket], None]:
    """An answer that breaks off: the connection is closed after it."""

    def speak(sock: socket.socket) -> None:
        sock.sendall(answer)
        sock.shutdown(socket.SHUT_RDWR)

    return speak


NONSENSE = {
    "an integer that is none": say(b":abc\r\n"),
    "an answer that breaks off": end(b"$100\r\nabc"),
    "HTML": say(b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/html\r\n\r\n<html>no</html>\r\n"),
    "OOM": say(b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"),
    "silence": lambda sock: None,
}


class Gateway(socketserver.ThreadingTCPServer):
    """A proxy of a real Redis that can be switched to answer nonsense.

    polite  whether it greets a new client as a Redis does before it answers nonsense
    """

    allow_reuse_address = daemon_threads = True

    def __init__(self, redis_url: str) -> None:
        parts = urlsplit(redis_url)
        self.real = (parts.hostname or "127.0.0.1", parts.port or 6379)
        self.nonsense: Callable[[socket.socket], None] | None = None
        self.polite = False
        super().__init__(("127.0.0.1", 0), _Session)
        self.url = parts._replace(netloc=f"127.0.0.1:{self.server_address[1]}").geturl()


class _Session(socketserver.BaseRequestHandler):
    server: Gateway

    def handle(self) -> None:
        with suppress(OSError), socket.create_connection(self.server.real) as real:
            back = threading.Thread(target=self._pass_back, args=(real,), daemon=True)
            back.start()
            while data := self.request.recv(65536):
                if self.server.nonsense is None:
                    real.sendall(data)
                elif self.server.polite and (b"HELLO" in data or b"CLIENT" in data):
                    self.request.sendall(
                        GREETING * data.count(b"HELLO") + b"+OK\r\n" * data.count(b"CLIENT")
                    )
                else:
                    self.server.nonsense(self.request)

    def _pass_back(self, real: socket.socket) -> None:
        with suppress(OSError):
            while data := real.recv(65536):
                self.request.sendall(data)


@pytest.fixture(scope="module")
def gateway(redis_url: str) -> Iterator[Gateway]:
    with Gateway(redis_url) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


ANCHORS = np.random.default_rng(1).normal(size=(12, 3))
QUERY = ANCHORS[:2] + 0.1
VERSIONS = itertools.count(1)


@pytest.fixture(scope="module")
def service(gateway, migrated_sqlite: Path, tmp_path_factory) -> Iterator[TestClient]:
    """A service whose Redis is behind the proxy and counts every request against a rate limit."""
    folder = tmp_path_factory.mktemp("faults")
    shutil.copy(migrated_sqlite, folder / "anchorage.db")
    prefix = f"test-faults-{folder.name}"
    settings = Settings(
        data_dir=folder,
        redis_url=gateway.url,
        redis_prefix=prefix,
        rate_limit="1000000/minute",
        threads=1,
    )
    with TestClient(
        create_app(settings), base_url="http://127.0.0.1", raise_server_exceptions=False
    ) as client:
        for name, dim in (("first", 3), ("second", 2)):
            assert client.post("/encoders", json={"name": name, "dim": dim}).status_code == 201
        yield client
    with redis.Redis(*gateway.real) as real:
        for key in real.scan_iter(f"*{prefix}*"):
            real.delete(key)


@pytest.fixture(scope="module", autouse=True)
def soon() -> Iterator[None]:
    """Redis is given up, and asked again, sooner than in operation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connect, "REDIS_READ_S", 0.3)
        patch.setattr(connect, "AWAY_S", 0.5)
        yield


def until_ready(service: TestClient) -> None:
    deadline = time.monotonic() + 30 * slack()
    while service.get("/readyz").json()["status"] != "ok":
        assert time.monotonic() < deadline, "never ready"
        time.sleep(0.02)


def cold_translation(service: TestClient) -> str:
    """Make an anchor set, translate with it, delete it, and return its name."""
    version = next(VERSIONS)
    name, targets = f"set-{version}", ANCHORS[:, :2] + version
    embeddings = {"first": ANCHORS.tolist(), "second": targets.tolist()}
    assert (
        service.post("/anchor-sets", json={"name": name, "embeddings": embeddings}).status_code
        == 201
    )
    body = {
        "source": "first",
        "target": "second",
        "anchor_set": name,
        "vectors": QUERY.tolist(),
        "method": "graded",
    }
    answer = service.post("/translate", json=body)
    assert answer.status_code == 200, answer.text
    spaces = [fit_space(torch.tensor(each, dtype=torch.float32)) for each in (ANCHORS, targets)]
    right = apply(
        fit("graded", *spaces, resolve("graded", {}, anchors=12)),
        torch.tensor(QUERY, dtype=torch.float32),
    )
    assert np.allclose(answer.json()["vectors"], right.vectors.numpy(), atol=1e-4)
    assert service.delete(f"/anchor-sets/{name}").status_code == 204
    return name


@pytest.mark.parametrize("kind", NONSENSE)
def test_whatever_redis_answers_the_service_answers_right_and_says_degraded_until_redis_is_back(
    service, gateway, kind
):
    until_ready(service)
    try:
        for gateway.polite in (True, False):
            gateway.nonsense = NONSENSE[kind]
            begun = time.monotonic()
            answer = service.get("/readyz")
            assert (answer.status_code, answer.json()["status"], answer.json()["redis"]) == (
                200,
                "degraded",
                False,
            )
            assert time.monotonic() - begun < slack() * 2
            cold_translation(service)
            assert time.monotonic() - begun < slack() * (2 * connect.REDIS_CALL_S + 5)
    finally:
        gateway.nonsense = None
    until_ready(service)
