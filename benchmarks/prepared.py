"""An endpoint of OpenAI's API for embeddings with prepared vectors, in a process of its own.

It does as little as it can, so that a benchmark measures those who ask it.
"""

# ruff: noqa: D102 (the methods of a protocol)
from __future__ import annotations

import asyncio
import base64
import multiprocessing
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import httpx2
import numpy as np
import orjson
from numpy.typing import NDArray

from scripts.servers import free_port

DIM, PREPARED = 384, 4_096

Vectors = NDArray[np.float32]
#: the vectors of texts by a model
Embed = Callable[[str, Sequence[str]], Vectors]


@cache
def prepared() -> Vectors:
    """The vectors of the endpoint, of unit length."""
    made = np.random.default_rng(7).standard_normal((PREPARED, DIM)).astype(np.float32)
    lengths: Vectors = np.linalg.norm(made, axis=1, keepdims=True)
    return made / lengths


def place_of(text: str) -> int:
    """The prepared vector of a text."""
    return zlib.crc32(text.encode()) % PREPARED


def any_text(model: str, texts: Sequence[str]) -> Vectors:
    """Prepared vectors, the same by every model."""
    return prepared()[[place_of(text) for text in texts]]


class Endpoint(asyncio.Protocol):
    """Answers each POST with prepared vectors, and each GET with the number of texts so far."""

    texts = 0
    embed: Embed
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
        vectors = Endpoint.embed(asked["model"], inputs).astype("<f4", copy=False)
        made = [b'"%b"' % base64.b64encode(vector.tobytes()) for vector in vectors]
        if asked.get("encoding_format") != "base64":
            made = [orjson.dumps(vector.tolist()) for vector in vectors]
        rows = [
            b'{"object":"embedding","index":%d,"embedding":%b}' % each for each in enumerate(made)
        ]
        tokens = sum(map(len, inputs)) // 4
        usage = b'"usage":{"prompt_tokens":%d,"total_tokens":%d}' % (tokens, tokens)
        return b'{"object":"list","model":"prepared","data":[%b],%b}' % (b",".join(rows), usage)

    def _send(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self._transport.writelines([head % len(body), body])


def serve(port: int, latency_s: float, embed: Embed) -> None:
    """Serve until the process is ended."""

    async def serve_forever() -> None:
        loop = asyncio.get_running_loop()
        await (await loop.create_server(Endpoint, "127.0.0.1", port)).serve_forever()

    Endpoint.latency_s, Endpoint.embed = latency_s, staticmethod(embed)
    asyncio.run(serve_forever())


@contextmanager
def endpoint(latency_s: float, embed: Embed = any_text) -> Iterator[str]:
    """Start the endpoint in a process of its own, which gets a copy of `embed`; its base URL."""
    port = free_port()
    url, arguments = f"http://127.0.0.1:{port}/v1", (port, latency_s, embed)
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=serve, args=arguments, daemon=True)
    process.start()
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
        process.join()


def texts_sent(url: str) -> int:
    """How many texts the endpoint has read."""
    return int(httpx2.get(url, trust_env=False).text)
