"""Receives request bodies within a size and a deadline, and notices clients that leave."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from app.api.codecs import media_types
from app.api.http import multipart
from app.errors import BodyTooLarge, BodyTooSlow, Malformed, UnsupportedMedia

Data = bytes | memoryview

#: time for a body to arrive, and one more second for each BODY_BYTES_PER_S
BODY_S = 20
BODY_BYTES_PER_S = 256 * 1024

#: how long the server discards the rest of a body before it closes the connection: a client that
#: is cut off while it sends does not see the answer
DISCARD_S = 10


def media_of(request: Request) -> str:
    """Returns the media type of the body, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def refuse_encoded(request: Request) -> None:
    """Raises UnsupportedMedia for a compressed body, whose size is unknown until it is unpacked."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise UnsupportedMedia(
            f"The server does not read Content-Encoding {encoding[:50]}. Send the body "
            "uncompressed.",
            field="Content-Encoding",
        )


@dataclass(frozen=True)
class WholeBody:
    """A body as it arrived.

    data     its bytes; of multipart, the part with the JSON fields
    files    the other parts of multipart; None for other bodies
    arrived  when it was complete: a time of time.perf_counter()
    """

    media: str
    data: Data
    files: list[bytes] | None
    arrived: float


async def read_body_once(request: Request) -> WholeBody:
    """Returns the body, which several dependencies of a route may read, in any order.

    JSON has a smaller limit than vectors and files: parsing it blocks all other threads.
    Raises UnsupportedMedia, BodyTooLarge, BodyTooSlow, Malformed, MalformedParts.
    """
    state = request.scope["state"]
    if "whole_body" in state:
        return state["whole_body"]  # type: ignore[no-any-return]
    media, admission = media_of(request), request.app.state.admission
    refuse_encoded(request)
    most = most_json = min(admission.max_json, admission.max_body_bytes)
    if media in (*media_types.VECTORS, media_types.MULTIPART):
        most = admission.max_body_bytes
    data, files = await read_whole(request, most), None
    arrived = time.perf_counter()
    if media == media_types.MULTIPART:
        data, files = await run_in_threadpool(
            multipart.split, request.headers["content-type"], data
        )
        if len(data) > most_json:
            raise _too_large(most_json)
    whole = WholeBody(media, data, files, arrived)
    if "idempotency-key" in request.headers:  # whose dependency reads it too
        state["whole_body"] = whole
    return whole


async def read_whole(request: Request, limit: int) -> Data:
    """Returns the body. Raises BodyTooLarge, BodyTooSlow, Malformed."""
    length = request.headers.get("content-length", "")
    declared = int(length) if length.isdecimal() else None
    if declared is not None and declared > limit:
        raise _too_large(limit, declared)
    seconds = BODY_S + (limit if declared is None else declared) / BODY_BYTES_PER_S
    try:
        async with asyncio.timeout(seconds):
            data, more = await _next_piece(request)
            whole = memoryview(data) if not more else await _read_on(request, limit, declared, data)
    except TimeoutError:
        raise BodyTooSlow(f"The body did not arrive within {seconds:.0f} s.") from None
    if len(whole) > limit:
        raise _too_large(limit)
    return whole


async def _next_piece(request: Request) -> tuple[bytes, bool]:
    """Returns the next bytes of the body, and whether more follow. Raises Malformed."""
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise Malformed("The client closed the connection before its body was complete.")
    return message.get("body", b""), message.get("more_body", False)


@contextmanager
def watch_departure(request: Request) -> Iterator[None]:
    """Calls the request context's `on_departure` functions if the client leaves.

    Use it after the body has been read. The functions can be registered in any thread.
    """
    loop = asyncio.get_running_loop()
    calls: list[Callable[[], object]] = []
    watchers: list[asyncio.Task[None]] = []

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        for call in calls:
            call()

    def begin() -> None:
        if not watchers and not loop.is_closed():
            watchers.append(loop.create_task(watch()))
        elif watchers and watchers[0].done():  # the client left before this call was registered
            for call in calls:
                call()

    def call_then(call: Callable[[], object]) -> None:
        calls.append(call)
        loop.call_soon_threadsafe(begin)

    state = request.scope.setdefault("state", {})
    state["on_departure"] = call_then
    try:
        yield
    finally:
        del state["on_departure"]
        for watcher in watchers:
            watcher.cancel()


async def _read_on(request: Request, limit: int, declared: int | None, data: bytes) -> memoryview:
    """Returns the whole body after its first bytes, in one buffer of the declared length."""
    whole = bytearray(declared or 0)
    end, more = 0, True
    while True:
        if end + len(data) > len(whole):
            whole[end:] = data
        else:
            whole[end : end + len(data)] = data
        end += len(data)
        if end > limit:
            raise _too_large(limit)
        if not more:
            return memoryview(whole)[:end]
        data, more = await _next_piece(request)


def _too_large(limit: int, size: int | None = None) -> BodyTooLarge:
    has = f"more than {limit} bytes, the limit" if size is None else f"{size} bytes"
    more = "" if size is None else f", and the limit is {limit}"
    return BodyTooLarge(
        f"The body has {has}{more}. Split the request; npy and Arrow may be larger than JSON.",
        limit=limit,
    )
