"""A real server in a separate process, and clients that add little to what is measured: sockets,
streams, its memory.
"""

from __future__ import annotations

import base64
import io
import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import orjson

from benchmarks.scaling.data import Matrix

Found = TypeVar("Found")

JSON, NPY, ARROW = "application/json", "application/x-npy", "application/vnd.apache.arrow.stream"
SETTLE_S = 0.2
#: longest wait for a server to listen, generous because importing torch is slow on busy cores
START_S = 180
TIMEOUT_S = 120

#: after this idle time a connection is renewed, because servers close idle ones
IDLE_S = 30


@dataclass
class Server:
    """A process that listens on `port`."""

    port: int
    process: subprocess.Popen[bytes]

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """Stop the process within this block, so that it uses no CPU there."""
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)
            time.sleep(SETTLE_S)

    def forget_peak(self) -> None:
        """Reset the peak of its memory."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def memory(self) -> tuple[float, float]:
        """MiB that it holds, and the most that it has held since `forget_peak`."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        values = {name: text for name, _, text in (line.partition(":") for line in lines)}
        return tuple(int(values[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))  # type: ignore[return-value]


@contextmanager
def serve(**settings: object) -> Iterator[Server]:
    """`anchorage serve` with its own data folder, on a free port."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(Path(sys.executable).with_name("anchorage")), "serve"]
        own = {"data_dir": folder, "log_format": "json", **settings}
        with started(
            command,
            {f"ANCHORAGE_{name.upper()}": str(value) for name, value in own.items()},
            Path(folder),
        ) as server:
            yield server


@contextmanager
def started(command: list[str], settings: Mapping[str, str], folder: Path) -> Iterator[Server]:
    """Run a command that listens on $ANCHORAGE_PORT."""
    port = free_port()
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("ANCHORAGE_")
    }
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            env={**environment, **settings, "ANCHORAGE_PORT": str(port)},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        for _ in range(10 * START_S):
            if process.poll() is not None:
                sys.exit(f"{command} ended with {process.returncode}:\n{log.read_text()[-2000:]}")
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.1)
        else:
            sys.exit(f"{command} does not listen:\n{log.read_text()[-2000:]}")
        yield Server(port, process)
    finally:
        if process.poll() is not None:
            print(
                f"{command} had ended with {process.returncode}:\n{log.read_text()[-2000:]}",
                file=sys.stderr,
            )
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait()


def free_port() -> int:
    """A free port outside the range that the system assigns, so that no neighbour takes it
    meanwhile.
    """
    for port in itertools.count(20_000 + os.getpid() % 10_000):
        with suppress(OSError):
            socket.create_server(("127.0.0.1", port)).close()
            return port
    raise AssertionError


class Connection:
    """One keep-alive connection, without a library between it and the socket, and memory for its
    answers.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._data = np.empty(0, np.uint8)
        self._connect()

    def _connect(self) -> None:
        self._socket = socket.create_connection(("127.0.0.1", self._port), timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._used = time.monotonic()

    def ask(self, path: str, body: bytes, media: str = NPY, *, verb: str = "POST") -> memoryview:
        """The body of the answer, which the next answer overwrites. Ends the benchmark if the
        status is an error.
        """
        if time.monotonic() - self._used > IDLE_S:
            self._socket.close()
            self._connect()
        head = request_head(verb, path, media, len(body))
        if len(body) < 2**16:
            self._socket.sendall(head + body)
        else:
            self._socket.sendall(head)
            self._socket.sendall(body)
        start = self._piece()
        while b"\r\n\r\n" not in start:
            start += self._piece()
        about, _, begun = start.partition(b"\r\n\r\n")
        lines = about.lower().split(b"\r\n")
        size = next(
            int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:")
        )
        if size > len(self._data):
            self._data = np.empty(size, np.uint8)
        view = self._data.data[:size]
        view[: len(begun)] = begun
        got = len(begun)
        while got < size:
            got += self._socket.recv_into(view[got:]) or sys.exit("the server hung up")
        if not lines[0].startswith(b"http/1.1 2"):
            sys.exit(f"{verb} {path}: {about.decode()}\n{bytes(view[:1000]).decode()}")
        self._used = time.monotonic()
        return view

    def _piece(self) -> bytes:
        return self._socket.recv(2**16) or sys.exit("the server hung up")


def request_head(verb: str, path: str, media: str, length: int) -> bytes:
    return (
        f"{verb} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {media}\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


def stream(
    port: int,
    path: str,
    media: str,
    parts: Callable[[], Iterator[bytes]],
    length: int,
    read: Callable[[HTTPResponse], Found],
) -> Found:
    """Send the parts of a body while reading the answer. Ends the benchmark if the status is an
    error.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as line:

        def send() -> None:
            try:
                line.sendall(request_head("POST", path, media, length))
                for part in parts():
                    line.sendall(part)
            except OSError as error:  # the reader prints what the server answered
                print(f"sending broke off: {error}", file=sys.stderr)

        sender = threading.Thread(target=send)
        sender.start()
        answer = HTTPResponse(line, method="POST")
        answer.begin()
        if answer.status != 200:
            sys.exit(f"{path}: {answer.status} {answer.read(1000).decode()}")
        found = read(answer)
        sender.join()
    return found


def npy(matrix: Matrix) -> bytes:
    file = io.BytesIO()
    np.save(file, matrix)
    return file.getvalue()


def read_npy(body: memoryview) -> Matrix:
    """The matrix, in the body's own memory."""
    size = int.from_bytes(body[8:10], "little") + 10
    file = io.BytesIO(body[:size])
    np.lib.format.read_magic(file)
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    return np.frombuffer(body[size:], dtype).reshape(shape)


def register(connection: Connection, encoders: Mapping[str, int]) -> None:
    """Register external encoders with these names and dimensions."""
    for name, dim in encoders.items():
        connection.ask("/encoders", orjson.dumps({"name": name, "dim": dim}), JSON)


def make_set(connection: Connection, name: str, anchors: Mapping[str, Matrix]) -> None:
    """Create an anchor set with the embeddings of the first encoder, then add those of
    the others.
    """
    (first, own), *others = anchors.items()
    packed: dict[str, Any] = {
        "dtype": "float32",
        "shape": own.shape,
        "base64": base64.b64encode(own.tobytes()).decode(),
    }
    connection.ask(
        "/anchor-sets", orjson.dumps({"name": name, "embeddings": {first: packed}}), JSON
    )
    for encoder, vectors in others:
        connection.ask(f"/anchor-sets/{name}/embeddings/{encoder}", npy(vectors), verb="PUT")
