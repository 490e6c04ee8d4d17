"""Request bodies: parsed by their Content-Type, and validated by the route's model.

A route declares `body: Annotated[Model, json_body(Model)]`. A route that answers vectors in the
format of its body declares `call: Annotated[Call[Model], vector_call(Model)]`.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from fastapi import Depends, Request
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from app.api.codecs import arrow, item_columns, media_types, npy, parquet
from app.api.http import multipart, query_fields
from app.api.http.body_reading import media_of, read_whole, refuse_encoded, watch_departure
from app.api.http.deps import context_of
from app.api.http.field_errors import Place, located
from app.api.http.json_cost import INLINE_BODY_BYTES, Data, parse_json
from app.api.schemas.fields import Body
from app.errors import InvalidRequest, UnsupportedMedia
from app.services.context import Services
from app.services.request_context import Repeat, RequestContext
from app.types import Scope

#: larger bodies are parsed one at a time: several parsing threads would compete for the GIL and
#: delay all other requests
LARGE_BYTES = 2**20
_one_large = threading.Lock()

IDEMPOTENCY_KEY = re.compile(r"[ -~]{1,255}")

BodyT = TypeVar("BodyT", bound=Body)
Parsed = TypeVar("Parsed")


def _read_npy(data: Data, most_rows: int) -> dict[str, Any]:
    return {"vectors": npy.read(data)}  # each route checks its limit of rows


#: the fields of a body, and the rows whose other columns the answer repeats
ReadTable = tuple[dict[str, Any], arrow.ArrowRows | None]

Reserve = Callable[[int], None]


def _read_arrow(data: Data, column: str | None, most_rows: int) -> ReadTable:
    rows = arrow.read(data, column, most_rows)
    return {"vectors": rows.vectors}, rows


def _read_parquet(
    data: Data, column: str | None, most_rows: int, most_bytes: int, reserve: Reserve
) -> ReadTable:
    rows = parquet.read(data, column, most_rows, most_bytes, reserve)
    return {"vectors": rows.vectors}, rows


@dataclass(frozen=True)
class BinaryReaders:
    """How a route reads npy, Arrow and Parquet bodies: their fields, and the rows of tables.

    described  what OpenAPI says of such a body; None: one matrix
    parquet    None: the route does not read Parquet
    is_light   whether an npy body of any size is read on the event loop; None: always
    pools      the body may hold a pool, whose limit of rows is higher
    """

    npy: Callable[[Data, int], dict[str, Any]] = _read_npy
    arrow: Callable[[Data, str | None, int], ReadTable] = _read_arrow
    described: str | None = None
    parquet: Callable[[Data, str | None, int, int, Reserve], ReadTable] | None = None
    is_light: Callable[[Data], bool] | None = None
    pools: bool = True

    @property
    def media(self) -> tuple[str, ...]:
        """The media types that it reads."""
        return media_types.VECTORS if self.parquet is not None else media_types.STREAMS


#: bodies of one matrix, which becomes the field `vectors`
ONE_MATRIX = BinaryReaders(parquet=_read_parquet)

#: bodies of an anchor set's items: npy has the vectors of one encoder
ITEM_COLUMNS = BinaryReaders(
    arrow=item_columns.read_arrow_items,
    described="npy: vectors of the encoder that `encoder` names. Arrow and Parquet: one row for "
    "each item; columns of float lists named after their encoders, and optionally the text "
    "columns `input` and `role`.",
    parquet=item_columns.read_parquet_items,
)


@dataclass(frozen=True)
class BodyFormats:
    """Which bodies a route reads in addition to JSON and multipart.

    vectors  npy and Arrow, whose rows become the field `vectors`
    query    fields in the query string, for bodies of npy and Arrow
    streams  with `stream=true` the route reads the body itself
    readers  of npy and Arrow
    """

    vectors: bool = False
    query: bool = False
    streams: bool = False
    readers: BinaryReaders = ONE_MATRIX

    @property
    def media(self) -> tuple[str, ...]:
        """The media types that the route reads."""
        plain = (media_types.JSON, media_types.MULTIPART)
        return (*plain, *self.readers.media) if self.vectors else plain


@dataclass(frozen=True)
class Call(Generic[BodyT]):
    """One request of a route that takes vectors.

    body      the validated fields; for a stream, the fields of its query string
    media     the media type of the body
    rows      the rows of an Arrow or Parquet body; None for other bodies
    streamed  the body is not read yet: the route answers while it arrives
    begun, arrived, parsed  times of time.perf_counter()
    """

    request: Request
    services: Services
    context: RequestContext
    body: BodyT
    media: str
    rows: arrow.ArrowRows | None = None
    streamed: bool = False
    begun: float = 0.0
    arrived: float = 0.0
    parsed: float = 0.0

    def encoding(self) -> AbstractContextManager[None]:
        """Returns a context that stops the encoding of inputs when the client disconnects."""
        has_inputs = getattr(self.body, "inputs", None) is not None
        return watch_departure(self.request) if has_inputs else nullcontext()

    def timing(self) -> str:
        """Returns the Server-Timing header: the time to read, to parse and to answer."""
        read, parse = self.arrived - self.begun, self.parsed - self.arrived
        answer = time.perf_counter() - self.parsed
        return (
            f"read;dur={read * 1e3:.3f}, parse;dur={parse * 1e3:.3f}, answer;dur={answer * 1e3:.3f}"
        )


def json_body(
    model: type[Body],
    *,
    vectors: bool = False,
    query: bool = False,
    readers: BinaryReaders = ONE_MATRIX,
) -> Any:
    """Returns a dependency for the validated body.

    A route declares it after the context, which refuses a key without the scope.
    """
    formats = BodyFormats(vectors=vectors, query=query, readers=readers)
    return Depends(partial(read_body, model, formats))


def vector_call(
    model: type[Body], *, streams: bool = False, readers: BinaryReaders | None = None
) -> Any:
    """Returns a dependency for the route's `Call`, with fields in the body or the query string.

    It is the route's only dependency, because FastAPI takes time for each one.
    """
    formats = BodyFormats(vectors=True, query=True, streams=streams, readers=readers or ONE_MATRIX)
    return Depends(partial(read_call, model, formats))


async def read_no_body(request: Request) -> None:
    """Reads the body of a call without fields: nothing, or `{}`.

    A route whose Idempotency-Key counts declares it after the context, as `json_body`.
    Raises BodyTooLarge, BodyTooSlow and InvalidRequest.
    """
    data = await read_whole(request, request.app.state.admission.max_body_bytes)
    if bytes(data).strip() not in (b"", b"{}"):
        raise InvalidRequest("This call takes no fields. Send no body, or `{}`.")
    _keep_repeat(request, b"", [])


async def read_body(
    model: type[BodyT], formats: BodyFormats, request: Request
) -> AsyncIterator[BodyT]:
    """Yields the validated body, and watches for the client's departure. Raises as `read_call`."""
    body, *_ = await _read(model, formats, request)
    with watch_departure(request):
        yield body


async def read_call(model: type[BodyT], formats: BodyFormats, request: Request) -> Call[BodyT]:
    """Returns the validated request.

    Raises UnsupportedMedia, BodyTooLarge (before reading, if the length is declared), BodyTooSlow,
    Malformed, the errors of npy, Arrow and vectors fields, InvalidRequest for a wrong query string
    or Idempotency-Key, RequestValidationError, and ScopeMissing for a key that may not read.
    """
    begun = time.perf_counter()
    services: Services = request.app.state.services
    context = context_of(request, Scope.read)
    if query_fields.wants_stream(request):
        fields = query_fields.read(request, model, streams=formats.streams)
        body = validate(model, fields, "query string")
        return Call(request, services, context, body, media_of(request), streamed=True)
    body, media, rows, arrived = await _read(model, formats, request)
    parsed = time.perf_counter()
    return Call(
        request, services, context, body, media, rows, begun=begun, arrived=arrived, parsed=parsed
    )


async def _read(
    model: type[BodyT], formats: BodyFormats, request: Request
) -> tuple[BodyT, str, arrow.ArrowRows | None, float]:
    """Returns the validated body, its media type, its Arrow rows, and when it had arrived."""
    media = media_of(request)
    refuse_encoded(request)
    if media not in formats.media:
        raise UnsupportedMedia(wrong_media(request, media, formats.media))
    query = (
        query_fields.read(request, model, streams=formats.streams)
        if formats.query
        else query_fields.refuse_fields(request)
    )
    most_bytes = request.app.state.admission.max_body_bytes
    data = await read_whole(request, most_bytes)
    arrived = time.perf_counter()
    files = None
    if media == media_types.MULTIPART:
        data, files = await run_in_threadpool(
            multipart.split, request.headers["content-type"], data
        )
    _keep_repeat(request, data, files or [])
    limits, readers = request.app.state.services.limits, formats.readers
    parse = partial(
        _parse,
        readers,
        media,
        data,
        files,
        query_fields.column(request),
        # each route checks its own limit later
        max(limits.vectors, limits.pool) if readers.pools else limits.vectors,
        most_bytes,
        query,
        model,
        context_of(request).reserve_bytes,
    )
    packed = media == media_types.PARQUET  # another process unpacks it, for which the thread waits
    light = media == media_types.NPY and (readers.is_light is None or readers.is_light(data))
    if light or (len(data) <= INLINE_BODY_BYTES and not packed):
        body, rows = parse()
    else:
        large = len(data) > LARGE_BYTES and not packed
        body, rows = await run_in_threadpool(partial(_one_at_a_time, parse) if large else parse)
    return body, media, rows, arrived


def wrong_media(request: Request, media: str, readable: tuple[str, ...]) -> str:
    """Returns what to answer to a Content-Type that the route does not read."""
    route = f"{request.method} {request.url.path}"
    sent = f"{route} does not read {media[:100]}" if media else "The request has no Content-Type"
    *others, last = readable
    return f"{sent}. Send {', '.join(others)} or {last}."


def validate(
    model: type[BodyT], fields: Any, place: Place = "body", most_rows: int | None = None
) -> BodyT:
    """Returns the fields as the model; `place` is where the client sent them.

    most_rows  a limit for validators, in their context
    Raises RequestValidationError, as FastAPI does, and the errors of vectors fields.
    """
    try:
        return model.model_validate(fields, context={"most_rows": most_rows})
    except ValidationError as error:
        raise located(error, model, place=place) from None


def _one_at_a_time(parse: Callable[[], Parsed]) -> Parsed:
    """Returns `parse()`, while no other large body is parsed."""
    with _one_large:
        return parse()


def _parse(
    readers: BinaryReaders,
    media: str,
    data: Data,
    files: list[bytes] | None,
    column: str | None,
    most_rows: int,
    most_bytes: int,
    query: dict[str, Any],
    model: type[BodyT],
    reserve: Callable[[int], None],
) -> tuple[BodyT, arrow.ArrowRows | None]:
    """Returns the body and the query string as the model, and the body's Arrow rows."""
    rows = None
    only_vectors = media in media_types.VECTORS
    if media == media_types.NPY:
        fields: Any = readers.npy(data, most_rows)
    elif media == media_types.ARROW:
        fields, rows = readers.arrow(data, column, most_rows)
    elif media == media_types.PARQUET:
        assert readers.parquet is not None
        fields, rows = readers.parquet(data, column, most_rows, most_bytes, reserve)
    else:
        fields = parse_json(data, reserve)
        if files is not None:
            fields = _with_files(fields, files)
    if query:
        fields = query_fields.join(fields, query, only_vectors=only_vectors)
    place: Place = "query string" if only_vectors else "body"
    return validate(model, fields, place, most_rows), rows


def _with_files(body: Any, files: list[bytes]) -> Any:
    """Returns the fields of the JSON part, with the files as `inputs`. Raises InvalidRequest."""
    if not isinstance(body, dict) or "inputs" in body:
        raise InvalidRequest(
            "The part `request` must be a JSON object without `inputs`, because the files are the "
            "inputs.",
            field="request",
        )
    return {**body, "inputs": files}


def _keep_repeat(request: Request, data: Data, files: list[bytes]) -> None:
    """Stores the Idempotency-Key with a digest of its request. Raises InvalidRequest."""
    key = request.headers.get("idempotency-key")
    if key is None:
        return
    if not IDEMPOTENCY_KEY.fullmatch(key):
        raise InvalidRequest(
            "An Idempotency-Key must have 1 to 255 printable ASCII characters.",
            field="Idempotency-Key",
        )
    prefer = request.headers.get("prefer", "")
    about = f"{request.method} {request.url.path} {request.url.query} {prefer}\n"
    fingerprint = hashlib.sha256(about.encode())
    for part in (data, *files):
        fingerprint.update(len(part).to_bytes(8))
        fingerprint.update(part)
    request.scope["state"]["repeat"] = Repeat(key, fingerprint.hexdigest())
