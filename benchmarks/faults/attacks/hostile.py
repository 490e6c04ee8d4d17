"""What an attacker sends: bodies as costly as their size allows, written to files once and sent
from there.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import numpy as np

#: a little below ANCHORAGE_MAX_JSON
BODY_BYTES = 8 * 2**20 - 64 * 1024

#: how long to wait for the answer to a hostile request
ANSWER_S = 300

#: fields that a translation needs in addition to its vectors, so that the body is not refused early
FIELDS = b'{"source":"old","target":"new","anchor_set":"base","method":"graded","vectors":'

DIGITS = np.frombuffer(
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-+", np.uint8
)


def _filled(file: IO[bytes], unit: bytes, end: bytes, *, start: bytes = b"[") -> None:
    """Write a body of about BODY_BYTES bytes: `start`, `unit` repeated, then `end`."""
    block = unit * (2**20 // len(unit))
    count = (BODY_BYTES - len(FIELDS) - len(end)) // len(block)
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
    for _ in range(5 * 10**6 // len(row)):
        file.write(row)
    file.write(b"[NaN" + b",0" * 767 + b"]]}")


#: by their names in the table
BODIES: dict[str, Callable[[IO[bytes]], None]] = {
    "257, repeated, then an escape and NaN": lambda file: _filled(
        file, b"257,", b'"\\u0041",NaN]}'
    ),
    "900,000 keys, an escape and NaN": lambda file: _keys(
        file, b',"____":1', 900_000, b',"\\u0041":NaN}'
    ),
    "550,000 longer keys": lambda file: _keys(file, b',"k00000____":1', 550_000, b"}"),
    "[], repeated": lambda file: _filled(file, b"[],", b"[]]}"),
    "{}, repeated": lambda file: _filled(file, b"{},", b"{}]}"),
    "strings of two letters": lambda file: _filled(file, b'"ab",', b'"ab"]}'),
    "lists in lists, 4 million deep": _deep,
    "5 MB of rows with one NaN": _floats,
    "integers of 10,000 digits": lambda file: _filled(file, b"1" * 10_000 + b",", b"1]}"),
    "floats of 10,000 digits": lambda file: _filled(file, b"0." + b"7" * 9_998 + b",", b"1]}"),
    "one string of escapes": lambda file: _filled(file, b"\\u00e9", b'"]}', start=b'["'),
    "4 million zeros in one list": lambda file: _filled(file, b"0,", b"0]}"),
}


def write_body(path: Path, kind: str) -> Path:
    """Write the body of that kind to a file."""
    with path.open("wb") as file:
        BODIES[kind](file)
    return path


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
