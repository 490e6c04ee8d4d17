"""Receives request bodies within a size and a deadline, and notices clients that leave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fastapi import Request

from app.errors import AnchorageError, BodyTooLarge, BodyTooSlow, Malformed, UnsupportedMedia

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


def declared_length(request: Request, limit: int) -> int | None:
    """Returns the Content-Length; None for a chunked body. Raises BodyTooLarge."""
    declared = request.headers.get("content-length", "")
    if not declared.isdecimal():
        return None
    if int(declared) > limit:
        raise BodyTooLarge(
            f"The body has {declared} bytes, and the limit is {limit}. Split the request.",
            limit=limit,
        )
    return int(declared)


async def read_whole(request: Request, limit: int) -> bytes | memoryview:
    """Returns the body. Raises BodyTooLarge, BodyTooSlow, Malformed."""
    declared = declared_length(request, limit)
    seconds = BODY_S + (limit if declared is None else declared) / BODY_BYTES_PER_S
    try:
        async with asyncio.timeout(seconds):
            data, more = await next_piece(request)
            whole = memoryview(data) if not more else await _read_on(request, limit, declared, data)
    except TimeoutError:
        raise BodyTooSlow(f"The body did not arrive within {seconds:.0f} s.") from None
    if len(whole) > limit:
        raise _too_large(limit)
    return whole


async def next_piece(request: Request) -> tuple[bytes, bool]:
    """Returns the next bytes of the body, and whether more follow. Raises Malformed."""
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise Malformed("The client closed the connection before its body was complete.")
    return message.get("body", b""), message.get("more_body", False)


class BodyReader:
    """Reads a body piece by piece. Raises BodyTooLarge, BodyTooSlow, Malformed."""

    def __init__(self, request: Request, limit: int) -> None:
        self._request, self._limit = request, limit
        self._left = memoryview(b"")
        self._seen = 0
        self.more = True

    async def read(self, size: int) -> memoryview:
        """Returns `size` bytes, or the rest of the body if it is shorter."""
        view = memoryview(bytearray(size))
        return view[: await self.fill(view)]

    async def fill(self, view: memoryview) -> int:
        """Writes to `view` until it is full or the body ends; returns the bytes written."""
        end = 0
        try:
            async with asyncio.timeout(BODY_S + len(view) / BODY_BYTES_PER_S):
                while end < len(view) and (self._left or self.more):
                    if not self._left:
                        await self._next()
                    size = min(len(self._left), len(view) - end)
                    view[end : end + size] = self._left[:size]
                    self._left = self._left[size:]
                    end += size
        except TimeoutError:
            raise BodyTooSlow("The next rows of the stream did not arrive in time.") from None
        return end

    async def discard(self) -> None:
        """Discards the rest of the body for DISCARD_S, so that the client receives its answer."""
        try:
            async with asyncio.timeout(DISCARD_S):
                while self.more:
                    _, self.more = await next_piece(self._request)
        except (TimeoutError, AnchorageError):
            pass

    async def _next(self) -> None:
        data, self.more = await next_piece(self._request)
        self._seen += len(data)
        if self._seen > self._limit:
            raise BodyTooLarge(
                f"The stream has more than {self._limit} bytes, the limit. Split it.",
                limit=self._limit,
            )
        self._left = memoryview(data)


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
        data, more = await next_piece(request)


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"The body has more than {limit} bytes, the limit. Split the request.", limit=limit
    )
