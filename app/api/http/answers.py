"""Writing answers of vectors: JSON lists, base64, npy or Arrow, as the request asks, in as few copies as each of them allows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
import pybase64
import torch
from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send
from torch import Tensor

from app.api.codecs import arrow, npy
from app.api.http.bodies import JSON, Call
from app.api.schemas import confidence
from app.api.schemas.fields import Dtype, Encoding
from app.errors import InvalidRequest, NotAcceptable
from app.maths.translators.translator import no_flags
from app.services.incoming import ANSWER_NUMBER_BYTES
from app.services.serving.maps import AnswerForm
from app.services.serving.products import refuse_overflow

MEDIA = (JSON, npy.MEDIA, arrow.MEDIA)

#: bytes of a number in an answer that is sent as it was computed
BYTES = {"float32": 4, "float16": 2}
TORCH = {"float32": torch.float32, "float16": torch.float16}

#: numbers written as text at once: nobody else runs meanwhile
PIECE_NUMBERS = 2**18

#: answers of more numbers are written by a thread, so that small ones need not wait for them
INLINE_NUMBERS = 2**14

#: what is said of an answer whatever its form
SHOWN = ("method", "translator", "options", "precision", "quantised", "classes", "quality")

#: flags that an answer's headers hold, and the longest of them
FLAGS_SHOWN, MOST_HEADER_BYTES = 100, 8_000


class PartsResponse(Response):
    """An answer that goes out part by part, without being put together first."""

    def __init__(
        self,
        parts: Sequence[bytes | memoryview],
        media: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(b"", media_type=media, headers=headers)
        self.parts = parts
        self.headers["Content-Length"] = str(sum(map(len, parts)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        for part in self.parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


@dataclass
class Writer:
    """How one answer is written.

    media     one of MEDIA
    encoding  of vectors within JSON
    dtype     of the numbers
    rows      what came in Arrow, and goes back in it
    """

    media: str
    encoding: Encoding = "float"
    dtype: Dtype = "float32"
    rows: arrow.Rows | None = None
    _file: np.ndarray[Any, np.dtype[np.uint8]] | None = field(default=None, init=False)

    @property
    def form(self) -> AnswerForm:
        """What the answer's numbers take, and where they are put."""
        as_computed = self.media != JSON
        return AnswerForm(BYTES[self.dtype] if as_computed else ANSWER_NUMBER_BYTES, self._empty)

    def is_small(self, vectors: Tensor) -> bool:
        """Whether to write it here and now."""
        return self.media == npy.MEDIA or vectors.numel() <= INLINE_NUMBERS

    def respond(
        self, vectors: Tensor, about: Mapping[str, Any], *, name: str = "vectors"
    ) -> Response:
        """An answer whose field `name` is the matrix; what else is said of it is in JSON, in headers, or in Arrow's metadata."""
        if self.media == npy.MEDIA:
            return PartsResponse([self._npy(vectors)], npy.MEDIA, headers(about))
        if self.media == arrow.MEDIA:
            return self._arrow(vectors, about, name)
        rest = orjson.dumps(about)
        parts = [
            b'{"%b":' % name.encode(),
            *self._text(vectors),
            b"," if len(rest) > 2 else b"",
            rest[1:],
        ]
        if vectors.numel() <= INLINE_NUMBERS:
            return Response(b"".join(parts), media_type=JSON)
        return PartsResponse(parts, JSON)

    def _empty(self, rows: int, dim: int) -> Tensor:
        """Memory for the answer; of an npy file, behind its header."""
        if self.media != npy.MEDIA:
            return torch.empty(rows, dim, dtype=TORCH[self.dtype])
        header = npy.header(rows, dim, self.dtype)
        self._file = np.empty(len(header) + rows * dim * BYTES[self.dtype], np.uint8)
        self._file[: len(header)] = np.frombuffer(header, np.uint8)
        return torch.from_numpy(self._file[len(header) :].view(self.dtype).reshape(rows, dim))

    def _npy(self, vectors: Tensor) -> memoryview:
        """The file that the vectors lie in, or one made of them."""
        if (
            self._file is None
            or not self._file.ctypes.data
            < vectors.data_ptr()
            < self._file.ctypes.data + len(self._file)
        ):
            self._empty(len(vectors), vectors.shape[1]).copy_(self._rounded(vectors))
        assert self._file is not None
        return memoryview(self._file)  # type: ignore[arg-type]

    def _arrow(self, vectors: Tensor, about: Mapping[str, Any], name: str) -> Response:
        columns = {self._column(name): arrow.vectors_array(self._rounded(vectors))}
        labels = about.get("labels")
        if labels is not None:
            columns["label"] = arrow.labels_array(labels)
        columns |= confidence.arrays(about)
        columns[arrow.FLAG] = arrow.flags_array(len(vectors), about["flags"])
        parts = arrow.write(self.rows, columns, metadata(about))
        return PartsResponse(parts, arrow.MEDIA, headers({**about, "flags": []}))

    def _column(self, name: str) -> str:
        """What Arrow's column of the matrix is called: as the client's, if it is vectors again. Raises BadColumn."""
        if name != "vectors":
            return name
        return (
            arrow.VECTOR
            if self.rows is None
            else arrow.vector_name(self.rows.schema, self.rows.place)
        )

    def _rounded(self, vectors: Tensor) -> Tensor:
        """In the answer's own numbers. Raises OutOfRange."""
        made = vectors.to(TORCH[self.dtype])
        if made is not vectors and self.dtype == "float16":
            refuse_overflow((made.isinf() & vectors.isfinite()).any(dim=1), "vectors")
        return made

    def _text(self, vectors: Tensor) -> list[bytes]:
        """The matrix within JSON."""
        array = np.ascontiguousarray(self._rounded(vectors).numpy())
        if self.encoding == "base64":
            head = b'{"dtype":"%b","shape":[%d,%d],"base64":"' % (self.dtype.encode(), *array.shape)
            return [head, pybase64.b64encode(array.data), b'"}']
        step = max(1, PIECE_NUMBERS // max(1, array.shape[1]))
        parts = []
        for start in range(0, len(array), step):
            written = orjson.dumps(array[start : start + step], option=orjson.OPT_SERIALIZE_NUMPY)
            parts += [written[:-1] if start == 0 else b"," + written[1:-1]]
        return [*parts, b"]"]


def flags(
    at_mean: Tensor | None,
    outside: Tensor | None = None,
    *,
    truncated: Sequence[int] = (),
    strange: Tensor | None = None,
) -> list[dict[str, Any]]:
    """The rows of an answer that there is something to know about, in their order."""
    if (
        at_mean is not None
        and not truncated
        and strange is None
        and at_mean is no_flags(at_mean.shape[0])[0]
    ):
        return []
    # Arrow's column has one flag a row, the last: those that say more than that a row is strange come after it.
    codes = {
        "out-of-distribution": strange,
        "equals-anchor-mean": at_mean,
        "outside-anchors": outside,
    }
    found = [
        {"row": row, "code": code}
        for code, rows in codes.items()
        if rows is not None and rows.any()
        for row in rows.nonzero().flatten().tolist()
    ]
    found += [{"row": row, "code": "input-truncated"} for row in truncated]
    return sorted(found, key=lambda flag: flag["row"])


def choose(call: Call[Any], encoding: Encoding, dtype: Dtype) -> Writer:
    """How to write the answer: as the Accept header says, or else as the body came. Raises NotAcceptable, InvalidRequest."""
    media = preferred(call.request, call.media if call.media in MEDIA else JSON)
    if media != JSON:
        refuse_base64(encoding)
    return Writer(media, encoding, dtype, call.rows if media == arrow.MEDIA else None)


def refuse_base64(encoding: Encoding) -> None:
    """Raises InvalidRequest for base64, where the answer is not JSON."""
    if encoding == "base64":
        raise InvalidRequest("`encoding: base64` only applies to JSON answers", field="encoding")


async def write(
    call: Call[Any], writer: Writer, vectors: Tensor, about: Mapping[str, Any]
) -> Response:
    """The answer, written by a thread if that takes long."""
    if writer.is_small(vectors):
        response = writer.respond(vectors, about)
    else:
        response = await run_in_threadpool(writer.respond, vectors, about)
    response.headers["Server-Timing"] = call.timing()
    return response


def preferred(request: Request, own: str, offered: Sequence[str] = MEDIA) -> str:
    """The offered media type that the request wants most; `own` if it does not care. Raises NotAcceptable."""
    accept = ", ".join(request.headers.getlist("accept"))
    if not accept or accept == "*/*":
        return own
    best, most = None, 0.0
    wanted = list(_wanted(accept, own))
    refused = {media for media, weight in wanted if weight <= 0}
    for found, weight in wanted:
        if found in offered and weight > most and found not in refused:
            best, most = found, weight
    if best is None:
        raise NotAcceptable(f"this answer is written as {', '.join(offered)}", field="Accept")
    return best


def accepts(accept: str, media: str) -> bool:
    """Whether an Accept header lets an answer be of that media type."""
    return not accept or any(
        found == media and weight > 0 for found, weight in _wanted(accept, media)
    )


def _wanted(accept: str, own: str) -> Iterator[tuple[str, float]]:
    """Media types and how much they are wanted; `own` for any."""
    for item in accept.split(","):
        media, *parameters = (part.strip().lower() for part in item.split(";"))
        weight = next((_weight(each[2:]) for each in parameters if each.startswith("q=")), 1.0)
        yield own if media in ("*/*", "application/*") else media, weight


def _weight(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def metadata(about: Mapping[str, Any]) -> dict[str, str]:
    """What is said of an answer, beside its rows: short texts."""
    shown = {name: about[name] for name in SHOWN if about.get(name)}
    shown |= confidence.summary(about)
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in shown.items()
    }


def headers(about: Mapping[str, Any]) -> dict[str, str]:
    """The same, and the flags, as headers."""
    found = {f"Anchorage-{name.title()}": value for name, value in metadata(about).items()}
    flags = about.get("flags") or []
    if flags:
        found["Anchorage-Flag-Count"] = str(len(flags))
        found["Anchorage-Flags"] = json.dumps(flags[:FLAGS_SHOWN])
    return {name: value for name, value in found.items() if len(value) <= MOST_HEADER_BYTES}
