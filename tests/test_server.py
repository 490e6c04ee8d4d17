"""`anchorage serve --workers`: several processes on one port, and what happens when one ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
import numpy as np
import pytest
import torch

from app.access.service import create_key
from app.context import RequestContext
from app.db.cache import MEMORY_S
from app.demo.server import free_port
from app.server import create_shared
from app.settings import Settings
from app.types import Scope
from app.wiring import make_services
from benchmarks.faults.deployment import Process
from tests.waiting import until

ANCHORS = np.random.default_rng(1).normal(size=(12, 3))
PAIR = {"source": "first", "target": "second", "anchor_set": "items"}
TRANSLATE = {**PAIR, "vectors": ANCHORS[:1].tolist()}

pytestmark = pytest.mark.timeout(300)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it ended before or while it was read
        return False


def children_of(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Several(Process):
    """`anchorage serve --workers 2`, in its own session, as in a terminal."""

    def __init__(self, folder: Path, temporary: Path, **settings: object) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        own = {"data_dir": folder, "port": self.port, **settings}
        ours = {f"ANCHORAGE_{name.upper()}": str(value) for name, value in own.items()}
        environment = {**os.environ, **ours, "TMPDIR": str(temporary)}
        command = [sys.executable, "-m", "app.cli", "serve", "--workers", "2"]
        super().__init__("server", command, folder, environment)

    @property
    def status(self) -> int | None:
        """The exit status; None while it runs."""
        assert self._process is not None
        return self._process.poll()

    @property
    def children(self) -> list[int]:
        """The processes that serve: forks of a child that imports for them."""
        importing = [
            pid
            for pid in children_of(self.pid)
            if b"forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        return [pid for each in importing for pid in children_of(each) if alive(pid)]

    def ready(self, started: int = 2) -> list[int]:
        """Wait until this number of processes have started. Returns the ids of those that run."""

        def began() -> bool:
            assert self.alive, self.log.read_text()
            return self.said("Application startup complete") == started

        until(began, 150)
        return self.children

    @contextmanager
    def only(self, pid: int) -> Iterator[None]:
        """Let only this process answer requests on new connections."""
        others = [other for other in self.children if other != pid]
        for other in others:
            os.kill(other, signal.SIGSTOP)
        yield
        for other in others:
            os.kill(other, signal.SIGCONT)


@pytest.fixture
def several(tmp_path: Path, redis_url: str, redis_prefix: str) -> Iterator[Callable[..., Several]]:
    with ExitStack() as stack:

        def start(temporary: Path, **settings: object) -> Several:
            redis = {"redis_url": redis_url, "redis_prefix": redis_prefix[:50]}
            server = Several(tmp_path, temporary, **redis, **settings)
            stack.callback(server.kill)
            server.start()
            return server

        yield start


def test_two_processes_are_one_service_and_finish_what_they_began_when_the_first_is_killed(
    tmp_path: Path, several: Callable[..., Several]
) -> None:
    services = make_services(Settings(data_dir=tmp_path))
    services.db.upgrade()
    key = create_key(services, RequestContext("own"), name="k", scopes=list(Scope))[1]
    services.close()
    server = several(tmp_path, auth="keys")

    def ask(method: str, path: str, body: object = None) -> httpx2.Response:
        """Asks on a separate connection."""
        how = {"headers": {"X-API-Key": key}, "trust_env": False, "timeout": 30}
        return httpx2.request(method, server.url + path, json=body, **how)

    def make_set(turn: int) -> None:
        rows = {"first": ANCHORS.tolist(), "second": (ANCHORS[:, :2] + 1000 * turn).tolist()}
        answer = ask("POST", "/anchor-sets", {"name": "items", "embeddings": rows})
        assert answer.status_code == 201

    def translations() -> float:
        pattern = r'^anchorage_request_seconds_count\{.*route="/translate",status="200".*\} (.+)$'
        return sum(map(float, re.findall(pattern, ask("GET", "/metrics").text, re.MULTILINE)))

    children = server.ready()
    for name, dim in (("first", 3), ("second", 2)):
        assert ask("POST", "/encoders", {"name": name, "dim": dim}).status_code == 201
    # Each of them answers, hears of what the other deletes, and counts for both.
    asked = 0
    for turn, pid in enumerate(children):
        make_set(turn)
        for each in children:
            with server.only(each):
                answers = [ask("POST", "/translate", TRANSLATE) for _ in range(3)]
                asked += 3
                # An answer is counted after it was sent, and a stopped process counts nothing.
                until(lambda total=asked: translations() == total)
            means = [round(np.mean(answer.json()["vectors"]) / 1000) for answer in answers]
            assert means == [turn] * 3
        for each in children:
            with server.only(each):
                assert translations() == asked
        with server.only(pid):  # the other one is stopped, and cannot say that it forgot
            assert ask("DELETE", "/anchor-sets/items").status_code == 204
        time.sleep(MEMORY_S)
        for each in children:
            with server.only(each):
                assert ask("POST", "/translate", TRANSLATE).json()["code"] == "anchor-set-not-found"
    make_set(0)
    # One is killed: the other answers, and another one comes.
    os.kill(children[0], signal.SIGKILL)
    until(lambda: not alive(children[0]))
    for _ in range(5):
        assert ask("POST", "/translate", TRANSLATE).status_code == 200
    replaced = server.ready(3)
    assert children[1] in replaced
    assert translations() == asked + 5  # what the killed one had counted is still counted
    with server.only(next(pid for pid in replaced if pid != children[1])):
        assert ask("POST", "/translate", TRANSLATE).status_code == 200
    # The first process is killed; the others notice it and finish their answers.
    body = json.dumps(TRANSLATE).encode()
    head = (
        f"POST /translate HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: {key}\r\n"
        "Content-Type: application/json\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:10])
        time.sleep(0.2)
        server.signal(signal.SIGKILL)
        time.sleep(0.5)
        connection.sendall(body[10:])
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200")
    until(lambda: not [pid for pid in replaced if alive(pid)], 20)
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", server.port))
    assert "Traceback" not in server.log.read_text()


def test_told_to_end_while_they_start_all_of_them_end_and_nothing_is_left(
    tmp_path: Path, several: Callable[..., Several]
) -> None:
    temporary = tmp_path / ("too long for the path of a Unix socket " * 3)
    temporary.mkdir()
    server = several(temporary)
    children = until(lambda: len(server.children) == 2 and server.children)
    server.end()
    assert server.status == 0
    assert not [pid for pid in children if alive(pid)]
    assert list(temporary.iterdir()) == []
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize(
    ("workers", "threads", "lanes", "own"), [(2, None, 16, 8), (8, None, 8, 2), (8, 3, 3, 3)]
)
def test_a_process_has_its_share_of_torch_threads_and_more_lanes(
    tmp_path: Path, workers: int, threads: int | None, lanes: int, own: int
) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(16)
        settings = Settings(data_dir=tmp_path, workers=workers, threads=threads)
        services = create_shared(settings).state.services
        assert (services.lanes.count, torch.get_num_threads()) == (lanes, own)
        services.close()
    finally:
        torch.set_num_threads(before)
