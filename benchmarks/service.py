"""A client that adds little to what is measured: one socket, and memory for its answers."""

from __future__ import annotations

import base64
import io
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

Matrix = NDArray[np.float32]

Found = TypeVar("Found")

JSON, NPY = "application/json", "application/x-npy"
TIMEOUT_S = 120

#: after this idle time a connection is renewed, because servers close idle ones
IDLE_S = 30


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


def packed(vectors: Matrix) -> dict[str, Any]:
    """Vectors in a JSON body."""
    numbers = np.ascontiguousarray(vectors, dtype="<f4")
    return {
        "dtype": "float32",
        "shape": numbers.shape,
        "base64": base64.b64encode(numbers.tobytes()).decode(),
    }


def make_set(connection: Connection, name: str, anchors: Mapping[str, Matrix]) -> None:
    """Create an anchor set with the embeddings of the first encoder, then add those of
    the others.
    """
    (first, own), *others = anchors.items()
    body = {"name": name, "embeddings": {first: packed(own)}}
    connection.ask("/anchor-sets", orjson.dumps(body), JSON)
    for encoder, vectors in others:
        connection.ask(f"/anchor-sets/{name}/embeddings/{encoder}", npy(vectors), verb="PUT")
