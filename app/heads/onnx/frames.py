"""Messages between the service and its ONNX processes: a small JSON object and plain bytes. Nothing
is unpickled.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

#: lengths of the two parts
FRAME_LENGTHS = struct.Struct("!IQ")
MOST_FRAME_HEADER_BYTES = 64 * 1024
#: bytes of a message: a head's file, rows, or answers
MOST_MESSAGE_BYTES = 80 * 2**20
#: rows of one message
MOST_MESSAGE_ROWS = 1_024

Buffer = bytes | bytearray | memoryview


def send(
    connection: socket.socket,
    header: dict[str, Any],
    payload: Buffer = b"",
    *,
    deadline: float | None = None,
) -> None:
    """Raises TimeoutError at the deadline (of time.monotonic), and OSError where nobody reads."""
    text = json.dumps(header).encode()
    for part in (FRAME_LENGTHS.pack(len(text), len(payload)) + text, payload):
        _limit(connection, deadline)
        connection.sendall(part)


def receive(
    connection: socket.socket, *, most: int, deadline: float | None = None
) -> tuple[dict[str, Any], bytearray]:
    """The JSON object and the bytes. Raises TimeoutError, EOFError where nobody writes, and
    ValueError for more than `most` bytes or for no object.
    """
    header_bytes, payload_bytes = FRAME_LENGTHS.unpack(_exactly(connection, FRAME_LENGTHS.size, deadline))
    if header_bytes > MOST_FRAME_HEADER_BYTES or payload_bytes > most:
        raise ValueError(f"a message of {header_bytes} and {payload_bytes} bytes")
    header = json.loads(_exactly(connection, header_bytes, deadline))
    if not isinstance(header, dict):
        raise ValueError("no JSON object")
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
