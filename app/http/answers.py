"""Writes answers of vectors as JSON lists, base64 or npy, with few copies."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pybase64
import torch
from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send
from torch import Tensor

from app.context import ANSWER_NUMBER_BYTES
from app.errors import InvalidRequest, NotAcceptable
from app.http import media_types, npy
from app.http.bodies import Call
from app.http.fields import Dtype, Encoding
from app.maths.geometry.space import refuse_overflow

ANSWER_MEDIA = (media_types.JSON, media_types.NPY)
REFUSED = re.compile(r"q=0(\.0*)?").fullmatch

#: bytes of a number in npy: float16 is rounded from float32
DTYPE_BYTES = {"float32": 4, "float16": 6}
TORCH_DTYPES = {"float32": torch.float32, "float16": torch.float16}

#: numbers that are written as text at once, which blocks all other threads
NUMBERS_AT_ONCE = 2**18

#: larger answers are written in a thread, so that other requests need not wait
INLINE_NUMBERS = 2**14

#: members of an answer's description that npy answers have too
DESCRIBED = (
    "method",
    "translator",
    "options",
    "classes",
)

#: most flags in an answer's headers, and the longest header
FLAGS_SHOWN, LONGEST_HEADER = 100, 8_000


class PartsResponse(Response):
    """An answer that is sent in parts, without joining them first."""

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
    """Writes one answer.

    media     one of ANSWER_MEDIA
    encoding  the encoding of vectors in JSON
    dtype     the type of the numbers
    """

    media: str
    encoding: Encoding = "float"
    dtype: Dtype = "float32"

    @property
    def number_bytes(self) -> int:
        """The bytes that a number of the answer takes."""
        return ANSWER_NUMBER_BYTES if self.media == media_types.JSON else DTYPE_BYTES[self.dtype]

    def respond(
        self, vectors: Tensor, about: Mapping[str, Any], *, name: str = "vectors"
    ) -> Response:
        """Returns an answer with the matrix as the field `name`, and its description `about`.

        The description stands in JSON or in headers.
        """
        if self.media == media_types.NPY:
            array = np.ascontiguousarray(self._rounded(vectors).numpy())
            rows, dim = vectors.shape
            file = (npy.header(rows, dim, self.dtype), array.data.cast("B"))
            return PartsResponse(file, media_types.NPY, describe_in_headers(about))
        rest = orjson.dumps(about)
        parts = [
            b'{"%b":' % name.encode(),
            *self._text(vectors),
            b"," if len(rest) > 2 else b"",
            rest[1:],
        ]
        headers = describe_in_headers({"warnings": about.get("warnings")})
        if vectors.numel() <= INLINE_NUMBERS:
            return Response(b"".join(parts), media_type=media_types.JSON, headers=headers)
        return PartsResponse(parts, media_types.JSON, headers)

    def _rounded(self, vectors: Tensor) -> Tensor:
        """Returns the vectors in the answer's dtype."""
        made = vectors.to(TORCH_DTYPES[self.dtype])
        if made is not vectors and self.dtype == "float16":
            refuse_overflow((made.isinf() & vectors.isfinite()).any(dim=1), "vectors")
        return made

    def _text(self, vectors: Tensor) -> list[bytes]:
        """Returns the matrix as parts of JSON."""
        array = np.ascontiguousarray(self._rounded(vectors).numpy())
        if self.encoding == "base64":
            head = b'{"dtype":"%b","shape":[%d,%d],"base64":"' % (self.dtype.encode(), *array.shape)
            return [head, pybase64.b64encode(array.data), b'"}']
        step = max(1, NUMBERS_AT_ONCE // max(1, array.shape[1]))
        parts = []
        for start in range(0, len(array), step):
            written = orjson.dumps(array[start : start + step], option=orjson.OPT_SERIALIZE_NUMPY)
            parts += [written[:-1] if start == 0 else b"," + written[1:-1]]
        return [*parts, b"]"]


def choose_writer(call: Call[Any], encoding: Encoding, dtype: Dtype) -> Writer:
    """Returns a writer for the format of the Accept header, or else of the body."""
    media = preferred_media(
        call.request, call.media if call.media in ANSWER_MEDIA else media_types.JSON
    )
    if media != media_types.JSON and encoding == "base64":
        raise InvalidRequest(
            "`encoding: base64` only applies to JSON answers. Remove it, or accept "
            f"{media_types.JSON}.",
            field="encoding",
        )
    return Writer(media, encoding, dtype)


async def write(
    call: Call[Any], writer: Writer, vectors: Tensor, about: Mapping[str, Any]
) -> Response:
    """Returns the answer, written in a thread if it is large."""
    is_file = writer.media == media_types.NPY and writer.dtype == "float32"
    if is_file or vectors.numel() <= INLINE_NUMBERS:
        response = writer.respond(vectors, about)
    else:
        response = await run_in_threadpool(writer.respond, vectors, about)
    response.headers["Server-Timing"] = call.timing()
    return response


def preferred_media(request: Request, own: str) -> str:
    """Returns the first media type of the Accept header that an answer can have; `own` without one.

    A weight of 0 refuses a type; other weights do not count.
    """
    accept = ", ".join(request.headers.getlist("accept"))
    for item in accept.lower().split(","):
        media, *parameters = (part.strip() for part in item.split(";"))
        if media in (*ANSWER_MEDIA, "*/*", "application/*") and not any(map(REFUSED, parameters)):
            return media if media in ANSWER_MEDIA else own
    if not accept:
        return own
    raise NotAcceptable(
        f"The server cannot write {accept[:100]} here. Accept {' or '.join(ANSWER_MEDIA)}.",
        field="Accept",
    )


def describe_in_headers(about: Mapping[str, Any]) -> dict[str, str]:
    """Returns the description and the flags of an answer as headers."""
    shown = {name: about[name] for name in DESCRIBED if about.get(name) not in (None, [], {})}
    if about.get("warnings"):
        shown["warnings"] = ", ".join(each["code"] for each in about["warnings"])
    if flags := about.get("flags"):
        shown |= {"flag_count": len(flags), "flags": flags[:FLAGS_SHOWN]}
    found = {
        f"Anchorage-{name.title().replace('_', '-')}": value
        if isinstance(value, str)
        else json.dumps(value)
        for name, value in shown.items()
    }
    return {name: value for name, value in found.items() if len(value) <= LONGEST_HEADER}


def respond_json(content: Any) -> Response:
    """A JSON response. Arrays become lists of the shortest decimals that are exact."""
    data = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(data, media_type="application/json")
