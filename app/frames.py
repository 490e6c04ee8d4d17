"""Messages between processes of the service: a small JSON object, then bytes.

No pickle is involved.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

#: lengths of the JSON object and of the bytes
FRAME_LENGTHS = struct.Struct("!IQ")
MOST_FRAME_HEADER_BYTES = 256 * 1024

#: a smaller payload is copied behind its header, and sent in one call
JOINED_BYTES = 64 * 1024

Buffer = bytes | bytearray | memoryview


def send(
    connection: socket.socket,
    header: dict[str, Any],
    payload: Buffer = b"",
    *,
    deadline: float | None = None,
) -> None:
    """Send a message. Raises TimeoutError at the deadline (by time.monotonic()), and OSError when
    the peer has closed the connection.
    """
    text = json.dumps(header).encode()
    head = FRAME_LENGTHS.pack(len(text), len(payload)) + text
    parts = (head + payload,) if len(payload) < JOINED_BYTES else (head, payload)
    for part in parts:
        _limit(connection, deadline)
        connection.sendall(part)


def receive(
    connection: socket.socket,
    *,
    most: int,
    most_header: int = MOST_FRAME_HEADER_BYTES,
    deadline: float | None = None,
) -> tuple[dict[str, Any], bytearray]:
    """Return the JSON object and the bytes of a message.

    Raises TimeoutError, EOFError when the peer has closed the connection, and ValueError for more
    than `most` bytes, for an object of more than `most_header`, or for JSON other than an object.
    """
    header_bytes, payload_bytes = FRAME_LENGTHS.unpack(
        _exactly(connection, FRAME_LENGTHS.size, deadline)
    )
    if header_bytes > most_header or payload_bytes > most:
        raise ValueError(f"a message of {header_bytes} and {payload_bytes} bytes")
    header = json.loads(_exactly(connection, header_bytes, deadline))
    if not isinstance(header, dict):
        raise ValueError("the header is not a JSON object")
    return header, _exactly(connection, payload_bytes, deadline)


def _exactly(connection: socket.socket, size: int, deadline: float | None) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        _limit(connection, deadline)
        count = connection.recv_into(view)
        if count == 0:
            raise EOFError
        view = view[count:]
    return data


def _limit(connection: socket.socket, deadline: float | None) -> None:
    connection.settimeout(None if deadline is None else max(deadline - time.monotonic(), 1e-3))
