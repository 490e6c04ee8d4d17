"""The limits of answers for the clients that speak HTTP with httpx: those of Qdrant and Chroma."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx

from app.errors import StoreUnavailable, StoreUnsupported
from app.stores.answers import MAX_ANSWER_BYTES, MAX_ANSWER_VALUES, answer_too_large

#: longest time of one answer: a server may send one byte a second
MAX_ANSWER_S = 60.0


def limit_answers(client: httpx.Client) -> None:
    """Let a client refuse larger answers before it holds or decodes them."""
    client.headers.update(UNCOMPRESSED)
    client.event_hooks = ANSWER_HOOKS


def _limit_answer(response: httpx.Response) -> None:
    coding = response.headers.get("content-encoding", "identity")
    if coding != "identity":
        raise StoreUnsupported(
            f"The store's server compressed its answer ({coding[:20]!r}), although the request "
            "forbids it. Ask the operator to switch compression off there."
        )
    if not isinstance(response.stream, httpx.SyncByteStream):
        raise TypeError("the client is not synchronous")
    response.stream = _LimitedStream(response.stream)


#: headers and hooks of httpx.Client that keep answers below the limits
UNCOMPRESSED = {"Accept-Encoding": "identity"}
ANSWER_HOOKS = {"response": [_limit_answer]}


class _LimitedStream(httpx.SyncByteStream):
    def __init__(self, stream: httpx.SyncByteStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        size = values = 0
        ends = time.monotonic() + MAX_ANSWER_S
        for part in self._stream:
            size += len(part)
            values += part.count(b",") + part.count(b"[") + part.count(b"{")
            if size > MAX_ANSWER_BYTES or values > MAX_ANSWER_VALUES:
                raise answer_too_large()
            if time.monotonic() > ends:
                raise StoreUnavailable(
                    f"The store's answer took longer than {MAX_ANSWER_S:g} s. Try again when its "
                    "server is less busy."
                )
            yield part

    def close(self) -> None:
        self._stream.close()
