"""An endpoint of OpenAI's API for embeddings with prepared vectors, in a process of its own.

    python -m benchmarks.prepared --port 9000 --latency-s .2

It does as little as it can, so that a benchmark measures those who ask it.
"""

# ruff: noqa: D102 (the methods of a protocol)
from __future__ import annotations

import argparse
import asyncio
import base64
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import numpy as np
import orjson
from numpy.typing import NDArray

from scripts.servers import free_port

DIM, PREPARED = 384, 4_096

Vectors = NDArray[np.float32]


def prepared() -> Vectors:
    """The vectors of the endpoint, of unit length."""
    made = np.random.default_rng(7).standard_normal((PREPARED, DIM)).astype(np.float32)
    lengths: Vectors = np.linalg.norm(made, axis=1, keepdims=True)
    return made / lengths


def place_of(text: str) -> int:
    """The prepared vector of a text."""
    return zlib.crc32(text.encode()) % PREPARED


class Endpoint(asyncio.Protocol):
    """Answers each POST with prepared vectors, and each GET with the number of texts so far."""

    texts = 0
    vectors: dict[str, list[bytes]]
    latency_s: float

    def connection_made(self, transport: Any) -> None:
        self._transport, self._bytes = transport, bytearray()

    def data_received(self, data: bytes) -> None:
        self._bytes += data
        end = self._bytes.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._bytes[:end]).lower()
        start = head.find(b"content-length:")
        size = int(head[start + 15 :].split(b"\r\n", 1)[0]) if start >= 0 else 0
        if len(self._bytes) < end + 4 + size:
            return
        body, self._bytes = bytes(self._bytes[end + 4 :]), bytearray()
        if head.startswith(b"get"):
            self._send(b"%d" % Endpoint.texts)
            return
        asyncio.get_running_loop().call_later(self.latency_s, self._send, self._answer(body))

    def _answer(self, body: bytes) -> bytes:
        asked = orjson.loads(body)
        inputs = [asked["input"]] if isinstance(asked["input"], str) else asked["input"]
        Endpoint.texts += len(inputs)
        vectors = self.vectors[asked.get("encoding_format") or "float"]
        rows = [
            b'{"object":"embedding","index":%d,"embedding":%b}' % (row, vectors[place_of(text)])
            for row, text in enumerate(inputs)
        ]
        tokens = sum(map(len, inputs)) // 4
        usage = b'"usage":{"prompt_tokens":%d,"total_tokens":%d}' % (tokens, tokens)
        return b'{"object":"list","model":"prepared","data":[%b],%b}' % (b",".join(rows), usage)

    def _send(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self._transport.writelines([head % len(body), body])


async def serve(port: int, latency_s: float) -> None:
    """Serve until the process is ended."""
    Endpoint.latency_s = latency_s
    Endpoint.vectors = {
        "float": [orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY) for row in prepared()],
        "base64": [b'"%b"' % base64.b64encode(row.tobytes()) for row in prepared()],
    }
    server = await asyncio.get_running_loop().create_server(Endpoint, "127.0.0.1", port)
    await server.serve_forever()


@contextmanager
def endpoint(latency_s: float) -> Iterator[str]:
    """Start the endpoint in a process of its own; its base URL."""
    port = free_port()
    url, options = f"http://127.0.0.1:{port}/v1", [f"--port={port}", f"--latency-s={latency_s}"]
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.prepared", *options])
    try:
        for _ in range(600):
            try:
                httpx2.get(url, trust_env=False)
                break
            except httpx2.TransportError:
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait()


def texts_sent(url: str) -> int:
    """How many texts the endpoint has read."""
    return int(httpx2.get(url, trust_env=False).text)


def main() -> None:
    command = argparse.ArgumentParser(prog="python -m benchmarks.prepared", description=__doc__)
    command.add_argument("--port", type=int, required=True)
    command.add_argument("--latency-s", type=float, default=0.0)
    options = command.parse_args()
    asyncio.run(serve(options.port, options.latency_s))


if __name__ == "__main__":
    main()
