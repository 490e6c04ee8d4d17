"""Answers streams of vectors while they arrive: npy in blocks, Arrow batch by batch.

The client reads while it sends. An error in the first rows is answered as a problem. A later error
ends the answer after the last good rows without its proper end, which HTTP clients report.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from fastapi import Request, Response
from pyarrow import ipc
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send
from torch import Tensor

from app.api.codecs import arrow, arrow_answers, arrow_messages, media_types, npy
from app.api.http.answer_sender import HangUp
from app.api.http.answers import (
    DTYPE_BYTES,
    TORCH_DTYPES,
    accepts,
    describe_in_headers,
    describe_in_texts,
    flags,
    warning_members,
)
from app.api.http.body_reading import BodyReader, declared_length, media_of, refuse_encoded
from app.api.schemas import confidence
from app.api.schemas.fields import Dtype
from app.errors import (
    AnchorageError,
    BadArrow,
    BadNpy,
    BodyTooLarge,
    DimensionMismatch,
    EmptyVectors,
    NotAcceptable,
    TooManyVectors,
    UnsupportedMedia,
    blaming,
)
from app.maths.translators.decoder import TranslatedRows
from app.maths.translators.translator import ProductPrecision
from app.observability import metrics
from app.services.context import Services
from app.services.request_context import RequestContext
from app.services.serving import products
from app.services.serving.confidence import RowConfidence
from app.services.serving.maps import ServedMap
from app.services.serving.products import Running

#: size of the blocks in which npy is read and answered
BLOCK_BYTES = 8 * 2**20

#: blocks in memory at once: one is read, one multiplied, one sent
BLOCKS_IN_MEMORY = 3

#: larger Arrow messages are read in a thread, so that other requests need not wait
INLINE_MESSAGE_BYTES = 16 * 1024


@dataclass(frozen=True)
class StreamPlan:
    """How to answer a stream.

    about  further members of the answer's description
    judge  returns the confidence of rows, from the output and the vectors; None: no confidence
    """

    services: Services
    context: RequestContext
    served: ServedMap
    dtype: Dtype
    precision: ProductPrecision
    what: str
    about: Mapping[str, Any] = field(default_factory=dict)
    judge: Callable[[TranslatedRows, Tensor], RowConfidence] | None = None


@dataclass
class _Block:
    """Rows in progress, with the Arrow batch that they came in."""

    running: Running
    start: int
    batch: pa.RecordBatch | None = None


async def respond(request: Request, plan: StreamPlan) -> Response:
    """Returns the streamed answer, which raises further errors while it is sent.

    Raises UnsupportedMedia, NotAcceptable and BodyTooLarge.
    """
    media = media_of(request)
    if media not in media_types.STREAMS:
        raise UnsupportedMedia(
            f"`stream=true` does not read {media[:100] or 'a body without a Content-Type'}. "
            f"Send {media_types.NPY} or {media_types.ARROW}."
        )
    refuse_encoded(request)
    if not accepts(", ".join(request.headers.getlist("accept")), media):
        raise NotAcceptable(
            f"A stream has the format of its body. Accept {media}, or remove the Accept header.",
            field="Accept",
        )
    limit = request.app.state.admission.max_stream_bytes
    declared_length(request, limit)
    body = BodyReader(request, limit)
    return _NpyStream(plan, body) if media == media_types.NPY else _ArrowStream(plan, body, request)


class _StreamedAnswer(Response, ABC):
    """An answer that is computed while it is sent."""

    media: str

    def __init__(self, plan: StreamPlan, body: BodyReader) -> None:
        super().__init__(b"", media_type=self.media)
        del self.headers["Content-Length"]
        served = plan.served
        about = {
            "method": served.method,
            "translator": served.id,
            "options": dict(served.options or {}),
            "warnings": warning_members(served.warnings),
            **plan.about,
        }
        self.headers.update(describe_in_headers(about))
        self.about = describe_in_texts(about)
        self.plan, self.source = plan, body
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
                raise EmptyVectors("The stream has no rows. Send at least one.", field="vectors")
            waiting, previous = previous, None
            begun = await self._send(send, waiting, begun)
            await send({"type": "http.response.body", "body": self._end()})
        except AnchorageError as error:
            if not begun:
                raise
            if previous is not None:  # good rows before the wrong ones
                with suppress(AnchorageError):
                    await self._send(send, previous, begun)
            await self.source.discard()
            rows = f" (rows {error.rows})" if error.rows else ""
            raise HangUp(f"after {self._rows} rows, {error.code}: {error.detail}{rows}") from None
        finally:
            metrics.BATCH_VECTORS.labels(f"{self.plan.what}-stream").observe(self._rows)

    async def _send(self, send: Send, block: _Block, begun: bool) -> bool:
        """Sends the rows of a block, and before the first block the head; returns True."""
        await block.running.wait()
        with blaming(self.plan.served.reads, rows_from=block.start):
            block.running.result()
        if not begun:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        parts = (
            self._parts(block)
            if self.plan.judge is None
            else await run_in_threadpool(self._parts, block)  # judging takes longer than a product
        )
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        self._rows = block.start + len(block.running.vectors)
        return True

    def _begin(
        self, vectors: Tensor, start: int, size: int, batch: pa.RecordBatch | None = None
    ) -> _Block:
        """Starts the product of a block that took `size` bytes."""
        plan = self.plan
        reads, makes = plan.served.dims
        if vectors.shape[1] != reads:
            raise self._wrong_dimension(vectors.shape[1])
        out = torch.empty(len(vectors), makes, dtype=TORCH_DTYPES[plan.dtype])
        self._make_room(BLOCKS_IN_MEMORY * (size + out.nbytes))
        with blaming(plan.served.reads, rows_from=start):
            running = products.begin(
                plan.services, plan.served.product, vectors, out, plan.precision
            )
        return _Block(running, start, batch)

    def _wrong_dimension(self, dim: int) -> DimensionMismatch:
        served = self.plan.served
        return DimensionMismatch(
            f"The vectors must have {served.dims[0]} numbers, and have {dim}.", field=served.reads
        )

    def _make_room(self, size: int) -> None:
        if size > self._room:
            self.plan.context.reserve_bytes(size - self._room)
            self._room = size

    @abstractmethod
    def _blocks(self) -> AsyncIterator[_Block]:
        """Yields the blocks of the answer while the body arrives."""

    @abstractmethod
    def _parts(self, block: _Block) -> list[Any]:
        """Returns the bytes of a block."""

    def _end(self) -> bytes:
        return b""


class _NpyStream(_StreamedAnswer):
    media = media_types.NPY

    async def _blocks(self) -> AsyncIterator[_Block]:
        found = await self._header()
        dtype, (count, dim) = found.dtype, found.shape
        makes = self.plan.served.dims[1]
        self._head: bytes | None = npy.header(count, makes, self.plan.dtype)
        self.headers["Content-Length"] = str(
            len(self._head) + count * makes * DTYPE_BYTES[self.plan.dtype]
        )
        numbers = self.plan.services.limits.numbers
        step = max(
            1,
            min(
                BLOCK_BYTES // max(dim * dtype.itemsize, makes * DTYPE_BYTES["float32"]),
                numbers // makes,
            ),
        )
        for start in range(0, count, step):
            rows = min(step, count - start)
            data = np.empty(rows * dim * dtype.itemsize, np.uint8)
            if await self.source.fill(memoryview(data.data)) < len(data):
                raise BadNpy(
                    f"The npy header declares {count} vectors, but the body ends within the "
                    f"{rows} vectors after vector {start}.",
                    field="vectors",
                )
            # Checked before the last block is sent: the answer would otherwise be complete.
            if start + rows == count and len(await self.source.read(1)):
                raise BadNpy(
                    f"The body continues after the {count} vectors that its npy header declares.",
                    field="vectors",
                )
            yield self._begin(
                npy.as_tensor(data.view(dtype).reshape(rows, dim)), start, data.nbytes
            )

    async def _header(self) -> npy.Header:
        data = bytes(await self.source.read(12))
        size = npy.header_size(data)
        data += bytes(await self.source.read(size - len(data)))
        found = npy.read_header(data)
        if found.columns_first:
            raise BadNpy(
                "The npy file is in Fortran order and cannot be streamed. Save it in C order.",
                field="vectors",
            )
        reads = self.plan.served.dims[0]
        if found.shape[1] != reads:
            raise self._wrong_dimension(found.shape[1])
        return found

    def _parts(self, block: _Block) -> list[Any]:
        numbers = memoryview(block.running.output.vectors.numpy().data).cast("B")
        parts = [numbers] if self._head is None else [self._head, numbers]
        self._head = None
        return parts


class _ArrowStream(_StreamedAnswer):
    media = media_types.ARROW

    def __init__(self, plan: StreamPlan, body: BodyReader, request: Request) -> None:
        super().__init__(plan, body)
        column = request.query_params.get("column")
        self._choose = partial(arrow.vector_column, name=column)
        self._limit = request.app.state.admission.max_body_bytes
        self._sink = arrow_answers.Sink()
        self._writer: ipc.RecordBatchStreamWriter | None = None

    async def _blocks(self) -> AsyncIterator[_Block]:
        reader, start = arrow.Reader(self._choose, self._limit), 0
        while (message := await self._message()) is not None:
            frame, data = message
            self._check_rows(frame)
            if len(data) + reader.dictionaries.unread > INLINE_MESSAGE_BYTES:
                batch = await run_in_threadpool(reader.add, frame, data)
            else:
                batch = reader.add(frame, data)
                await asyncio.sleep(0)  # messages that have arrived are read without other pauses
            if frame.kind == arrow_messages.SCHEMA:
                self._open(reader)
            if batch is not None and batch.num_rows:
                vectors = arrow.matrix(batch, reader.place, data, start)
                yield self._begin(vectors, start, len(data) + reader.dictionaries.held, batch)
                start += batch.num_rows

    def _check_rows(self, frame: arrow_messages.Frame) -> None:
        """Raises TooManyVectors for a batch whose answer would be too large."""
        most = self.plan.services.limits.numbers // self.plan.served.dims[1]
        if frame.kind == arrow_messages.BATCH and frame.rows > most:
            raise TooManyVectors(
                f"A record batch has {frame.rows} vectors, and the limit is {most}. Send smaller "
                "batches.",
                field="vectors",
                limit=most,
            )

    async def _message(self) -> tuple[arrow_messages.Frame, memoryview] | None:
        """Returns the next message; None at the stream's end."""
        head = bytes(await self.source.read(arrow_messages.FRAME_BYTES))
        if not head:
            return None
        head += bytes(await self.source.read(arrow_messages.metadata_size(head)))
        frame = arrow_messages.next_frame(head, 0)
        if frame is None:
            raise BadArrow("The Arrow stream ends within a message.", field="vectors")
        if frame.kind == arrow_messages.END_OF_STREAM:
            await self.source.discard()
            return None
        if frame.end > self._limit:
            raise BodyTooLarge(
                f"A record batch has {frame.end} bytes, and the limit is {self._limit}. Send "
                "smaller batches.",
                limit=self._limit,
            )
        whole = np.empty(frame.end, np.uint8).data
        whole[: len(head)] = head
        if await self.source.fill(whole[len(head) :]) < frame.end - len(head):
            raise BadArrow("The Arrow stream ends within a message.", field="vectors")
        return frame, whole

    def _open(self, reader: arrow.Reader) -> None:
        plan, schema, place = self.plan, reader.schema, reader.place
        assert schema is not None
        kind = pa.list_(
            pa.float32() if plan.dtype == "float32" else pa.float16(), plan.served.dims[1]
        )
        columns = {arrow_answers.vector_name(schema, place): kind}
        if plan.judge is not None:
            columns |= dict.fromkeys(confidence.ARROW_COLUMNS.values(), pa.float32())
        columns[arrow_answers.FLAG] = pa.string()
        self._place = place
        self._schema = arrow_answers.answer_schema(schema, place, columns, self.about)
        self._writer = ipc.new_stream(pa.PythonFile(self._sink, mode="w"), self._schema)

    def _parts(self, block: _Block) -> list[Any]:
        made = block.running.output
        columns, strange = [arrow_answers.vectors_array(made.vectors)], None
        if self.plan.judge is not None:
            with blaming(self.plan.served.reads, rows_from=block.start):
                judged = self.plan.judge(made, block.running.vectors)
            columns += confidence.row_arrays(judged)
            strange = judged.expected.strange
        row_flags = flags(made.at_mean, made.outside, strange=strange)
        columns.append(arrow_answers.flags_array(len(made.vectors), row_flags))
        assert self._writer is not None
        self._writer.write_batch(
            arrow_answers.answer_batch(self._schema, block.batch, self._place, columns)
        )
        parts, self._sink.parts = self._sink.parts, []
        return parts

    def _end(self) -> bytes:
        return arrow_messages.END
