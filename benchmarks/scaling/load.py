"""Clients that send their next request as soon as they have an answer.

Reads a job as a line of JSON and then the bytes of the request; prints the measurements as JSON.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import sys
import time
from dataclasses import dataclass, field

import uvloop

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


@dataclass
class Run:
    """What all clients share. Answers before `begin` warm up, and no client sends after `end`."""

    request: bytes
    begin: float = math.inf
    end: float = math.inf
    latencies: list[float] = field(default_factory=list)
    refused: int = 0
    lost: int = 0


class Client(asyncio.Protocol):
    """One connection."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._head = b""
        self._left = -1
        self._going = False
        self.met = asyncio.get_running_loop().create_future()
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send one request."""
        # uvloop's transport is not a subclass.
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._ask()

    def go(self) -> None:
        """From now on send requests until the end."""
        self._going = True
        self._ask()

    def _ask(self) -> None:
        self._head, self._left = b"", -1
        self._started = time.perf_counter()
        self._transport.write(self._run.request)

    def data_received(self, data: bytes) -> None:
        """Receive part of an answer."""
        if self._left >= 0:
            self._left -= len(data)
        else:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            found = LENGTH.search(self._head, 0, end)
            assert found is not None, self._head[:end]
            self._left = int(found[1]) - (len(self._head) - end - 4)
        if self._left == 0:
            self._answered()

    def _answered(self) -> None:
        run, now = self._run, time.perf_counter()
        if not self._going:
            self.met.set_result(None)
            return
        if not self._head.startswith(b"HTTP/1.1 200"):
            run.refused += 1
        elif run.begin <= now <= run.end:
            run.latencies.append(now - self._started)
        if now < run.end:
            self._ask()
        else:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        """The connection has closed."""
        self._run.lost += time.perf_counter() < self._run.end
        self.done.set_result(None)


async def measure(job: dict[str, float], request: bytes) -> dict[str, float]:
    """Run all clients at once.

    Each gets one answer before, because a busy server accepts new connections one by one.
    """
    loop = asyncio.get_running_loop()
    run = Run(request)
    clients = []
    for _ in range(int(job["clients"])):
        _, client = await loop.create_connection(lambda: Client(run), "127.0.0.1", int(job["port"]))
        await client.met
        clients.append(client)
    run.begin = time.perf_counter() + job["warm_s"]
    run.end = run.begin + job["seconds"]
    for client in clients:
        client.go()
    await asyncio.sleep(job["warm_s"])
    spent = time.process_time()
    await asyncio.sleep(run.end - time.perf_counter())
    spent = time.process_time() - spent
    await asyncio.gather(*(client.done for client in clients))
    assert run.lost == 0, f"{run.lost} connections were closed"
    times = sorted(run.latencies)
    assert times, "no answer in time"
    return {
        "requests_per_s": len(times) / job["seconds"],
        "p50_ms": times[len(times) // 2] * 1e3,
        "p99_ms": times[len(times) * 99 // 100] * 1e3,
        "client_core": spent / job["seconds"],
        "refused": run.refused,
    }


if __name__ == "__main__":
    asked = json.loads(sys.stdin.buffer.readline())
    print(json.dumps(uvloop.run(measure(asked, sys.stdin.buffer.read()))))
