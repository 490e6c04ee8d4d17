"""Clients in one process: each sends its next request as soon as it has an answer.

Reads a job as a line of JSON and the bytes of all requests, connects, writes a line, waits for
another one, sends everything, and prints the times as JSON. The clock is that of the machine, so
that several processes can be compared.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Iterator
from typing import Any

import uvloop

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
#: an answer with any status shows that the server has accepted the connection
FIRST = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Client(asyncio.Protocol):
    """One connection."""

    def __init__(self, requests: Iterator[bytes], latencies: list[float]) -> None:
        self._requests, self._latencies = requests, latencies
        self._sending = False
        loop = asyncio.get_running_loop()
        self.met: asyncio.Future[None] = loop.create_future()
        self.done: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request, which does not count."""
        # uvloop's transport is not a subclass.
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._send(FIRST)

    def go(self) -> None:
        """Send requests until there are no more."""
        self._sending = True
        self._next()

    def _next(self) -> None:
        request = next(self._requests, None)
        if request is None:
            self.done.set_result(None)
            self._transport.close()
        else:
            self._send(request)

    def _send(self, request: bytes) -> None:
        self._head, self._left = b"", -1
        self._started = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Receive part of an answer."""
        if self._left >= 0:
            self._left -= len(data)
        else:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            length = LENGTH.search(self._head, 0, end)
            self._left = int(length[1] if length else 0) - (len(self._head) - end - 4)
        if self._left == 0:
            self._answered()

    def _answered(self) -> None:
        if not self._sending:
            self.met.set_result(None)
        elif self._head.startswith(b"HTTP/1.1 200"):
            self._latencies.append(time.perf_counter() - self._started)
            self._next()
        else:
            self.done.set_exception(RuntimeError(self._head[:1_000].decode(errors="replace")))

    def connection_lost(self, error: Exception | None) -> None:
        """Fail if the server closed the connection."""
        for waited in (self.met, self.done):
            if not waited.done():
                waited.set_exception(RuntimeError("the server closed the connection"))


async def measure(job: dict[str, Any], requests: list[bytes]) -> dict[str, Any]:
    """Send all requests. Returns when, how long each took, and the processor time."""
    loop = asyncio.get_running_loop()
    waiting, latencies = iter(requests), list[float]()
    clients = []
    for _ in range(job["clients"]):
        _, client = await loop.create_connection(
            lambda: Client(waiting, latencies), job["host"], job["port"]
        )
        await client.met
        clients.append(client)
    print("connected", flush=True)
    sys.stdin.buffer.readline()
    started, spent = time.monotonic(), time.process_time()
    for client in clients:
        client.go()
    await asyncio.gather(*(client.done for client in clients))
    return {
        "started": started,
        "ended": time.monotonic(),
        "cpu_s": time.process_time() - spent,
        "latencies": latencies,
    }


def main() -> None:
    """Run the job on standard input."""
    job = json.loads(sys.stdin.buffer.readline())
    requests = [sys.stdin.buffer.read(size) for size in job["sizes"]]
    try:
        print(json.dumps(uvloop.run(measure(job, requests))))
    except (OSError, RuntimeError) as error:
        print(json.dumps({"error": str(error)}))


if __name__ == "__main__":
    main()
