"""Vectors of any number, answered while they come: npy in blocks, Arrow batch by batch, in memory for a few of them.

The client reads while it sends. What is wrong with the first rows is answered as a problem; what is wrong later ends the answer
after the last good rows, without its proper end, which HTTP clients report.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from fastapi import Request, Response
from pyarrow import ipc
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send
from torch import Tensor

from app.api.codecs import arrow, npy
from app.api.http.admission import HangUp
from app.api.http.answers import BYTES, TORCH, accepts, flags, headers, metadata
from app.api.http.bodies import (
    BODY_BYTES_PER_S,
    BODY_S,
    declared_length,
    media_of,
    next_piece,
    refuse_encoded,
)
from app.api.schemas.fields import Dtype
from app.errors import (
    AnchorageError,
    BadArrow,
    BadNpy,
    BodyTooLarge,
    BodyTooSlow,
    DimensionMismatch,
    EmptyVectors,
    NotAcceptable,
    TooManyVectors,
    UnsupportedMedia,
)
from app.maths.translators.translator import ProductPrecision
from app.observability import metrics
from app.services.context import Services, answer_bytes
from app.services.serving import products
from app.services.serving.plans import Served
from app.services.serving.products import Running

#: what npy is read and answered in
BLOCK_BYTES = 8 * 2**20

#: blocks that are in memory at once: read, multiplied, sent
HELD = 3

#: Arrow messages above this are read in a thread, so that the others need not wait for it
INLINE_BYTES = 16 * 1024

#: how long the rest of a body is thrown away for, so that the client receives what was answered
DISCARD_S = 10


@dataclass(frozen=True)
class Plan:
    """What answers a stream, and how; `about`: what is said of it beside what serves it."""

    services: Services
    served: Served
    dtype: Dtype
    precision: ProductPrecision
    what: str
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class _Block:
    """Rows on their way; of Arrow, with the batch that they came in."""

    running: Running
    start: int
    batch: pa.RecordBatch | None = None


class _Feed:
    """A body as it comes. Raises BodyTooLarge, BodyTooSlow, Malformed."""

    def __init__(self, request: Request, limit: int) -> None:
        self._request, self._limit = request, limit
        self._left = memoryview(b"")
        self._seen = 0
        self.more = True

    async def read(self, size: int) -> memoryview:
        """So many bytes, or what is left of the body."""
        view = memoryview(bytearray(size))
        return view[: await self.fill(view)]

    async def fill(self, view: memoryview) -> int:
        """Write to all of `view`, or as far as the body goes; returns how far."""
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
            raise BodyTooSlow("the next rows did not arrive in time") from None
        return end

    async def discard(self) -> None:
        """Throw away what still comes, for a while, and however much it is: a client that is cut off loses what it was sent."""
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
                f"a stream of more than {self._limit} bytes, which is what is allowed",
                limit=self._limit,
            )
        self._left = memoryview(data)


async def respond(request: Request, plan: Plan) -> Response:
    """Raises UnsupportedMedia, NotAcceptable and BodyTooLarge; the rest while it is sent."""
    media = media_of(request)
    if media not in (npy.MEDIA, arrow.MEDIA):
        raise UnsupportedMedia(
            f"stream=true is for bodies of {npy.MEDIA} or {arrow.MEDIA}, got {media or 'no content type'}"
        )
    refuse_encoded(request)
    if not accepts(", ".join(request.headers.getlist("accept")), media):
        raise NotAcceptable(f"a stream is answered as it comes: as {media}", field="Accept")
    limit = request.app.state.admission.max_stream_bytes
    declared_length(request, limit)
    feed = _Feed(request, limit)
    return _NpyStream(plan, feed) if media == npy.MEDIA else _ArrowStream(plan, feed, request)


class _Stream(Response):
    """An answer that is computed while it is sent."""

    media: str

    def __init__(self, plan: Plan, feed: _Feed) -> None:
        super().__init__(b"", media_type=self.media)
        del self.headers["Content-Length"]
        served = plan.served
        about = {
            "method": served.method,
            "translator": served.id,
            "options": dict(served.options or {}),
            **plan.about,
        }
        self.headers.update(headers(about))
        self.about = metadata(about)
        self.plan, self.feed = plan, feed
        self._rows = 0
        self._room = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False
        previous: _Block | None = None
        try:
            async for block in self._blocks():
                waiting, previous = previous, None
                if waiting is not None:
                    begun = await self._send(send, waiting, begun)
                previous = block
            if previous is None:
                raise EmptyVectors("expected at least one vector", field="vectors")
            waiting, previous = previous, None
            begun = await self._send(send, waiting, begun)
            await send({"type": "http.response.body", "body": self._end()})
        except AnchorageError as error:
            if not begun:
                raise
            if previous is not None:  # good rows that wait for those that are wrong
                with suppress(AnchorageError):
                    await self._send(send, previous, begun)
            await self.feed.discard()
            rows = f", rows {error.rows}" if error.rows else ""
            raise HangUp(f"after {self._rows} rows: {error.code}: {error.detail}{rows}") from None
        finally:
            metrics.BATCH_VECTORS.labels(f"{self.plan.what}-stream").observe(self._rows)

    async def _send(self, send: Send, block: _Block, begun: bool) -> bool:
        """The rows of a block, once they are there; the answer begins with the first."""
        await block.running.wait()
        try:
            block.running.result()
        except AnchorageError as error:
            raise error.at(self.plan.served.reads).shifted(block.start) from None
        if not begun:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        for part in self._parts(block):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        self._rows = block.start + len(block.running.vectors)
        return True

    def _begin(
        self, vectors: Tensor, start: int, size: int, batch: pa.RecordBatch | None = None
    ) -> _Block:
        """Multiply the vectors of a block that took `size` bytes."""
        plan = self.plan
        reads, makes = plan.served.dims
        if vectors.shape[1] != reads:
            raise DimensionMismatch(
                f"expected vectors of dimension {reads}, got {vectors.shape[1]}",
                field=plan.served.reads,
            )
        out = torch.empty(len(vectors), makes, dtype=TORCH[plan.dtype])
        self._make_room(HELD * (size + out.nbytes))
        try:
            return _Block(
                products.begin(plan.services, plan.served.product, vectors, out, plan.precision),
                start,
                batch,
            )
        except AnchorageError as error:
            raise error.at(self.plan.served.reads).shifted(start) from None

    def _make_room(self, size: int) -> None:
        if size > self._room:
            answer_bytes.get()(size - self._room)
            self._room = size

    def _blocks(self) -> AsyncIterator[_Block]:
        raise NotImplementedError

    def _parts(self, block: _Block) -> list[Any]:
        raise NotImplementedError

    def _end(self) -> bytes:
        return b""


class _NpyStream(_Stream):
    media = npy.MEDIA

    async def _blocks(self) -> AsyncIterator[_Block]:
        found = await self._header()
        dtype, (count, dim) = found.dtype, found.shape
        makes = self.plan.served.dims[1]
        self._head: bytes | None = npy.header(count, makes, self.plan.dtype)
        self.headers["Content-Length"] = str(
            len(self._head) + count * makes * BYTES[self.plan.dtype]
        )
        numbers = self.plan.services.limits.numbers
        step = max(
            1,
            min(
                BLOCK_BYTES // max(dim * dtype.itemsize, makes * BYTES["float32"]), numbers // makes
            ),
        )
        for start in range(0, count, step):
            rows = min(step, count - start)
            data = np.empty(rows * dim * dtype.itemsize, np.uint8)
            if await self.feed.fill(memoryview(data.data)) < len(data):
                raise BadNpy(
                    f"the header says {count} vectors, and the body ends within vector {start} or later",
                    field="vectors",
                )
            if start + rows == count and len(
                await self.feed.read(1)
            ):  # or the answer would be whole
                raise BadNpy(
                    f"the body goes on after the {count} vectors of its header", field="vectors"
                )
            yield self._begin(
                npy.as_tensor(data.view(dtype).reshape(rows, dim)), start, data.nbytes
            )

    async def _header(self) -> npy.Header:
        data = bytes(await self.feed.read(12))
        size = npy.header_size(data)
        data += bytes(await self.feed.read(size - len(data)))
        found = npy.read_header(data)
        if found.columns_first:
            raise BadNpy("columns first: such a file cannot be streamed", field="vectors")
        reads = self.plan.served.dims[0]
        if found.shape[1] != reads:
            raise DimensionMismatch(
                f"expected vectors of dimension {reads}, got {found.shape[1]}",
                field=self.plan.served.reads,
            )
        return found

    def _parts(self, block: _Block) -> list[Any]:
        numbers = memoryview(block.running.made.vectors.numpy().data).cast("B")
        parts = [numbers] if self._head is None else [self._head, numbers]
        self._head = None
        return parts


class _ArrowStream(_Stream):
    media = arrow.MEDIA

    def __init__(self, plan: Plan, feed: _Feed, request: Request) -> None:
        super().__init__(plan, feed)
        self._column = request.query_params.get("column")
        self._limit = request.app.state.admission.max_body_bytes
        self._sink = arrow.Sink()
        self._writer: ipc.RecordBatchStreamWriter | None = None

    async def _blocks(self) -> AsyncIterator[_Block]:
        reader, start = arrow.Reader(self._column, self._limit), 0
        while (message := await self._message()) is not None:
            frame, data = message
            self._check_rows(frame)
            if len(data) + reader.dictionaries.unread > INLINE_BYTES:
                batch = await run_in_threadpool(reader.add, frame, data)
            else:
                batch = reader.add(frame, data)
                await asyncio.sleep(
                    0
                )  # what has come already is read without a wait: let the others have a turn
            if frame.kind == arrow.SCHEMA:
                self._open(reader)
            if batch is not None and batch.num_rows:
                vectors = arrow.matrix(batch, reader.place, data, start)
                yield self._begin(vectors, start, len(data) + reader.dictionaries.held, batch)
                start += batch.num_rows

    def _check_rows(self, frame: arrow.Frame) -> None:
        """Raises TooManyVectors."""
        most = self.plan.services.limits.numbers // self.plan.served.dims[1]
        if frame.kind == arrow.BATCH and frame.rows > most:
            raise TooManyVectors(
                f"{frame.rows} vectors in one batch, {most} are allowed",
                field="vectors",
                limit=most,
            )

    async def _message(self) -> tuple[arrow.Frame, memoryview] | None:
        """The next message, or None at the stream's end."""
        head = bytes(await self.feed.read(arrow.FRAME_BYTES))
        if not head:
            return None
        head += bytes(await self.feed.read(arrow.metadata_size(head)))
        frame = arrow.next_frame(head, 0)
        if frame is None:
            raise BadArrow("the stream ends within a message", field="vectors")
        if frame.kind == arrow.END_OF_STREAM:
            await self.feed.discard()
            return None
        if frame.end > self._limit:
            raise BodyTooLarge(
                f"a record batch of {frame.end} bytes, {self._limit} are allowed: send smaller ones",
                limit=self._limit,
            )
        whole = np.empty(frame.end, np.uint8).data
        whole[: len(head)] = head
        if await self.feed.fill(whole[len(head) :]) < frame.end - len(head):
            raise BadArrow("the stream ends within a message", field="vectors")
        return frame, whole

    def _open(self, reader: arrow.Reader) -> None:
        plan, schema, place = self.plan, reader.schema, reader.place
        assert schema is not None
        kind = pa.list_(
            pa.float32() if plan.dtype == "float32" else pa.float16(), plan.served.dims[1]
        )
        columns = {arrow.vector_name(schema, place): kind, arrow.FLAG: pa.string()}
        self._place = place
        self._schema = arrow.answer_schema(schema, place, columns, self.about)
        self._writer = ipc.new_stream(pa.PythonFile(self._sink, mode="w"), self._schema)

    def _parts(self, block: _Block) -> list[Any]:
        made = block.running.made
        columns = [
            arrow.vectors_array(made.vectors),
            arrow.flags_array(len(made.vectors), flags(made.at_mean, made.outside)),
        ]
        assert self._writer is not None
        self._writer.write_batch(
            arrow.answer_batch(self._schema, block.batch, self._place, columns)
        )
        parts, self._sink.parts = self._sink.parts, []
        return parts

    def _end(self) -> bytes:
        return arrow.END
