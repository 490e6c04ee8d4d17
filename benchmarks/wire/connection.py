"""A keep-alive connection that times round trips, without a library between it and the socket."""

from __future__ import annotations

import socket
import time

from benchmarks.service import request_head

#: room for the longest answer
ANSWER_BYTES = 80 * 2**20


class Connection:
    """One keep-alive connection, and memory for its answers."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = bytearray(ANSWER_BYTES)
        self._view = memoryview(self._data)

    def ask(self, path: str, body: bytes, media: str) -> tuple[float, dict[str, str], memoryview]:
        """Seconds of the round trip, the answer's headers, and its body, which the next answer
        overwrites.

        Raises ConnectionError if the answer is not 200.
        """
        head = request_head("POST", path, media, len(body))
        started = time.perf_counter()
        if len(body) < 2**16:
            self._socket.sendall(head + body)
        else:
            self._socket.sendall(head)
            self._socket.sendall(body)
        got, end, size = 0, -1, 0
        headers: dict[str, str] = {}
        while end < 0 or got < end + size:
            count = self._socket.recv_into(self._view[got:])
            if count == 0:
                raise ConnectionError(bytes(self._data[:got])[:300])
            got += count
            if end < 0 and (found := self._data.find(b"\r\n\r\n", 0, got)) >= 0:
                end = found + 4
                headers = _headers(bytes(self._data[:found]).decode())
                size = int(headers["content-length"])
        seconds = time.perf_counter() - started
        if headers["status"] != "200":
            raise ConnectionError(bytes(self._data[:got])[:600].decode())
        return seconds, headers, self._view[end : end + size]


def _headers(text: str) -> dict[str, str]:
    first, *lines = text.split("\r\n")
    found = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    return {**found, "status": first.split()[1]}
