"""What an attacker sends: bodies as costly as their size allows, written to files once and sent
from there.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import numpy as np
import onnx
import pyarrow as pa
from onnx import TensorProto, helper

#: a little below ANCHORAGE_MAX_BODY_BYTES
BODY_BYTES = 64 * 2**20 - 64 * 1024

#: how long to wait for the answer to a hostile request
ANSWER_S = 300

#: fields that a translation needs in addition to its vectors, so that the body is not refused early
FIELDS = b'{"source":"old","target":"new","anchor_set":"base","method":"graded","vectors":'

DIGITS = np.frombuffer(
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-+", np.uint8
)

VIEWS, VIEWED_BYTES = 16_384, 50 * 10**6


def _filled(
    file: IO[bytes], unit: bytes, end: bytes, *, start: bytes = b"[", size: int = BODY_BYTES
) -> None:
    """Write a body of about `size` bytes: `start`, `unit` repeated, then `end`."""
    block = unit * (2**20 // len(unit))
    count = (size - len(FIELDS) - len(end)) // len(block)
    file.write(FIELDS + start)
    for _ in range(count):
        file.write(block)
    file.write(end)


def _keys(file: IO[bytes], unit: bytes, count: int, end: bytes) -> None:
    """Write `count` different keys: each `_` of the unit becomes a digit of the key's number to the
    base 64.
    """
    file.write(FIELDS + b"[0]")
    numbers = np.arange(count, dtype=np.int64)
    members = np.tile(np.frombuffer(unit, np.uint8), (count, 1))
    for digit, column in enumerate(np.flatnonzero(members[0] == ord("_"))):
        members[:, column] = DIGITS[(numbers >> (6 * digit)) & 63]
    file.write(members.tobytes())
    file.write(end)


def _deep(file: IO[bytes]) -> None:
    half = (BODY_BYTES - len(FIELDS)) // 2
    file.write(FIELDS + b"[" * half + b"]" * half + b"}")


def _floats(file: IO[bytes]) -> None:
    row = b"[" + b",".join(b"0.%09d" % (number * 7919 % 10**9) for number in range(768)) + b"],"
    file.write(FIELDS + b"[")
    for _ in range(40 * 10**6 // len(row)):
        file.write(row)
    file.write(b"[NaN" + b",0" * 767 + b"]]}")


#: by their names in the table
BODIES: dict[str, Callable[[IO[bytes]], None]] = {
    "257, repeated, then an escape and NaN": lambda file: _filled(
        file, b"257,", b'"\\u0041",NaN]}'
    ),
    "7 million keys, an escape and NaN": lambda file: _keys(
        file, b',"____":1', 7_000_000, b',"\\u0041":NaN}'
    ),
    "4.4 million longer keys": lambda file: _keys(file, b',"k00000____":1', 4_400_000, b"}"),
    "[], repeated": lambda file: _filled(file, b"[],", b"[]]}"),
    "{}, repeated": lambda file: _filled(file, b"{},", b"{}]}"),
    "strings of two letters": lambda file: _filled(file, b'"ab",', b'"ab"]}'),
    "lists in lists, 33 million deep": _deep,
    "40 MB of rows with one NaN": _floats,
    "integers of 10,000 digits": lambda file: _filled(file, b"1" * 10_000 + b",", b"1]}"),
    "floats of 10,000 digits": lambda file: _filled(file, b"0." + b"7" * 9_998 + b",", b"1]}"),
    "one string of escapes": lambda file: _filled(
        file, b"\\u00e9", b'"]}', start=b'["', size=60 * 10**6
    ),
    "33 million zeros in one list": lambda file: _filled(file, b"0,", b"0]}"),
}


def write_body(path: Path, kind: str) -> Path:
    """Write the body of that kind to a file."""
    with path.open("wb") as file:
        BODIES[kind](file)
    return path


def write_views(path: Path) -> Path:
    """Write an Arrow stream whose second column has a view of one string of 50 MB in each row."""
    view = struct.pack("<i4sii", VIEWED_BYTES, b"aaaa", 0, 0)
    text = pa.py_buffer(b"a" * VIEWED_BYTES)
    texts = pa.Array.from_buffers(pa.string_view(), VIEWS, [None, pa.py_buffer(view * VIEWS), text])
    vectors = pa.FixedSizeListArray.from_arrays(pa.array([0.5] * (VIEWS * 48), pa.float32()), 48)
    batch = pa.record_batch({"vector": vectors, "text": texts})
    with path.open("wb") as file, pa.ipc.new_stream(file, batch.schema) as stream:
        stream.write_batch(batch)
    return path


def small_head(dim: int) -> bytes:
    """An ONNX file of one matrix product."""
    weight = helper.make_tensor("w", TensorProto.FLOAT, [dim, 3], [0.1] * (3 * dim))
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "head",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", dim])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(onnx.ModelProto.SerializeToString(model))


def head(method: str, path: str, headers: dict[str, str]) -> bytes:
    """The head of a request."""
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: 127.0.0.1",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def connect(url: str, *, source: str = "127.0.0.1", timeout_s: float = ANSWER_S) -> socket.socket:
    """A connection of the attacker."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    return socket.create_connection((parts.hostname, parts.port or 80), timeout_s, (source, 0))


def send_file(url: str, path: str, key: str, media: str, body: Path) -> str:
    """POST a file without loading it. Returns the status of the answer, or how the connection
    ended.
    """
    headers = {
        "Authorization": f"Bearer {key}",
        "Content-Type": media,
        "Content-Length": str(body.stat().st_size),
    }
    try:
        with connect(url) as connection, body.open("rb") as file:
            connection.sendall(head("POST", path, {**headers, "Connection": "close"}))
            # Even a request that is refused early may have an answer.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.sendfile(file)
            return status(connection)
    except OSError as error:
        return type(error).__name__


def status(connection: socket.socket) -> str:
    """The status of the answer, or "cut" if there is none."""
    first = connection.recv(64)
    return first.split()[1].decode() if first.startswith(b"HTTP/1.1 ") else "cut"


def half_heads(url: str, count: int) -> list[socket.socket]:
    """`count` connections that have sent half a request head; fewer if some cannot connect within 2
    s.
    """
    opened = []
    for _ in range(count):
        try:
            connection = connect(url, timeout_s=2)
        except OSError:
            continue
        connection.sendall(b"GET /encoders HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half:")
        opened.append(connection)
    return opened


def still_open(connections: Iterable[socket.socket]) -> int:
    """How many connections the server has not closed."""
    count = 0
    for connection in connections:
        connection.setblocking(False)
        with suppress(OSError):
            count += not _closed(connection)
    return count


def _closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(4096, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False


def wrong_keys(url: str, per_second: float, until: float) -> Counter[str]:
    """GET /encoders with well-formed keys that do not exist, at that pace, from a separate address.

    Returns how often each status was the answer.
    """
    statuses: Counter[str] = Counter()
    parts = urlsplit(url)
    connection = HTTPConnection(
        parts.hostname or "", parts.port, timeout=10, source_address=("127.0.0.2", 0)
    )
    due = time.monotonic()
    while time.monotonic() < until:
        due += 1 / per_second
        time.sleep(max(0.0, due - time.monotonic()))
        try:
            connection.request(
                "GET",
                "/encoders",
                headers={"Authorization": f"Bearer anc_{os.urandom(16).hex()}_{'x' * 43}"},
            )
            # Read the whole answer, even if head and body arrive apart: the next one begins where
            # it ends.
            answer = connection.getresponse()
            answer.read()
            statuses[str(answer.status)] += 1
        except (OSError, HTTPException) as error:
            connection.close()  # the next request opens a new one
            statuses[type(error).__name__] += 1
    connection.close()
    return statuses
