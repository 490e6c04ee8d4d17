"""Request bodies: read within a size and a deadline, parsed as their Content-Type says, validated by the route's model.

A route declares `body: Annotated[Model, json_body(Model)]`. One that answers vectors in the form they came in declares
`call: Annotated[Call[Model], vector_call(Model)]`.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import orjson
from fastapi import Depends, Request
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from app.api.codecs import arrow, npy
from app.api.http import multipart, query_fields
from app.api.http.deps import project_of
from app.api.http.field_errors import Place, located
from app.api.schemas.fields import Body
from app.errors import BodyTooLarge, BodyTooSlow, InvalidRequest, Malformed, UnsupportedMedia
from app.services.context import Repeat, Services, answer_bytes, on_departure, origin
from app.types import Scope

JSON = "application/json"
#: bodies that hold nothing but vectors: their fields are in the query string
VECTOR_MEDIA = (npy.MEDIA, arrow.MEDIA)

#: a body has this time to arrive, and one second more for each BODY_BYTES_PER_S
BODY_S = 20
BODY_BYTES_PER_S = 256 * 1024

#: most values of one JSON body (counted by its commas), lists and objects, and quotation marks: orjson lets nothing else
#: run until it has made an object of each, which takes about 0.2 s for this many
MOST_VALUES = 2**22
MOST_CONTAINERS = 2**19
MOST_QUOTES = 2**20
#: bytes of memory that each may take until the body has become tensors and texts, and that each byte of a text may take
VALUE_BYTES, LIST_BYTES, OBJECT_BYTES, QUOTE_BYTES, TEXT_BYTES = 56, 96, 256, 56, 5
#: memory of a request, as a multiple of the room that it takes among the bytes in flight
MEMORY_FACTOR = 10
#: bytes that are counted at once: they fit into a processor's cache
BLOCK = 2**20

#: larger bodies are parsed in a thread, so that small requests do not wait for them
INLINE_BYTES = 64 * 1024
#: still larger ones are parsed one after another: threads that hold the interpreter in turn keep everybody else from it
LARGE_BYTES = 2**20
_one_large = threading.Lock()

IDEMPOTENCY_KEY = re.compile(r"[ -~]{1,255}")

BodyT = TypeVar("BodyT", bound=Body)
Parsed = TypeVar("Parsed")

Data = bytes | memoryview


@dataclass(frozen=True)
class Reading:
    """Which bodies a route reads beside JSON and multipart.

    vectors  npy and Arrow, whose rows become the field `vectors`
    query    fields may come in the query string, which bodies of npy and Arrow have no other place for
    streams  with `stream=true` the route reads the body itself
    """

    vectors: bool = False
    query: bool = False
    streams: bool = False

    @property
    def media(self) -> tuple[str, ...]:
        """The media types that the route reads."""
        return (
            (JSON, multipart.MEDIA, npy.MEDIA, arrow.MEDIA)
            if self.vectors
            else (JSON, multipart.MEDIA)
        )


@dataclass(frozen=True)
class Call(Generic[BodyT]):
    """One request of a route that takes vectors.

    services, project  what the route works with, and for whom
    body      the validated fields; of a stream, those of its query string
    media     the media type of the body
    rows      the body's Arrow rows, if it had any
    streamed  the body has not been read: the route answers while it arrives
    begun, arrived, parsed  moments of time.perf_counter()
    """

    request: Request
    services: Services
    project: str
    body: BodyT
    media: str
    rows: arrow.Rows | None = None
    streamed: bool = False
    begun: float = 0.0
    arrived: float = 0.0
    parsed: float = 0.0

    def encoding(self) -> AbstractContextManager[None]:
        """A context in which whoever encodes the inputs, if there are any, can hear that the client left."""
        return (
            nullcontext()
            if getattr(self.body, "inputs", None) is None
            else departures(self.request)
        )

    def timing(self) -> str:
        """The Server-Timing header: how long the body took to arrive, to be parsed, and the answer to be made."""
        read, parse = self.arrived - self.begun, self.parsed - self.arrived
        answer = time.perf_counter() - self.parsed
        return (
            f"read;dur={read * 1e3:.3f}, parse;dur={parse * 1e3:.3f}, answer;dur={answer * 1e3:.3f}"
        )


def json_body(model: type[Body], *, vectors: bool = False, query: bool = False) -> Any:
    """A dependency that gives a route its validated body. It comes after `project`, which refuses a key without the scope."""
    return Depends(partial(read_body, model, Reading(vectors=vectors, query=query)))


def vector_call(model: type[Body], *, streams: bool = False) -> Any:
    """A dependency that gives a route its `Call`: JSON, multipart, npy or Arrow, with fields in body or query string.

    It is the route's only one: these routes are called once a query, and FastAPI takes time for each dependency.
    """
    return Depends(partial(read_call, model, Reading(vectors=True, query=True, streams=streams)))


async def read_body(model: type[BodyT], reading: Reading, request: Request) -> AsyncIterator[BodyT]:
    """The validated body; while the route works, whoever works for it can hear that its client left. Raises as `read_call`."""
    body, *_ = await _read(model, reading, request)
    with departures(request):
        yield body


async def read_call(model: type[BodyT], reading: Reading, request: Request) -> Call[BodyT]:
    """The validated body, and how it came.

    Raises UnsupportedMedia, BodyTooLarge (before the body is read, where its length is declared), BodyTooSlow, Malformed, the
    errors of npy, Arrow and vectors fields, InvalidRequest for a query string or an Idempotency-Key that is wrong,
    RequestValidationError, and ScopeMissing for a key that may not read.
    """
    begun = time.perf_counter()
    services: Services = request.app.state.services
    project = project_of(request, Scope.read)
    if query_fields.wants_stream(request):
        fields = query_fields.read(request, model, streams=reading.streams)
        body = validated(model, fields, "query string")
        return Call(request, services, project, body, media_of(request), streamed=True)
    body, media, rows, arrived = await _read(model, reading, request)
    parsed = time.perf_counter()
    return Call(
        request, services, project, body, media, rows, begun=begun, arrived=arrived, parsed=parsed
    )


async def _read(
    model: type[BodyT], reading: Reading, request: Request
) -> tuple[BodyT, str, arrow.Rows | None, float]:
    """The validated body, its media type, its Arrow rows, and the moment when it had arrived."""
    media = media_of(request)
    refuse_encoded(request)
    if media not in reading.media:
        raise UnsupportedMedia(
            f"expected a body of {' or '.join(reading.media)}, got {media or 'no content type'}"
        )
    query = (
        query_fields.read(request, model, streams=reading.streams)
        if reading.query
        else query_fields.refuse_fields(request)
    )
    data = await read_whole(request, request.app.state.admission.max_body_bytes)
    arrived = time.perf_counter()
    files = None
    if media == multipart.MEDIA:
        data, files = await run_in_threadpool(
            multipart.split, request.headers["content-type"], data
        )
    _note_repeat(request, data, files or [])
    limits = request.app.state.services.limits
    most_rows = max(
        limits.vectors, limits.pool
    )  # each route has a limit of its own, which it checks later
    parse = partial(
        _parsed, media, data, files, query_fields.column(request), most_rows, query, model
    )
    if len(data) <= INLINE_BYTES or media == npy.MEDIA:
        body, rows = parse()
    else:
        body, rows = await run_in_threadpool(
            partial(_in_turn, parse) if len(data) > LARGE_BYTES else parse
        )
    return body, media, rows, arrived


def validated(model: type[BodyT], fields: Any, place: Place = "body") -> BodyT:
    """Returns the fields as the model; `place` is where the client sent them.

    Raises RequestValidationError, as FastAPI does, and the errors of vectors fields.
    """
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise located(error, model, place=place) from None


def parse_json(data: Data) -> Any:
    """JSON as Python's objects. Raises Malformed, and for a large body as `_count_cost`."""
    if len(data) > INLINE_BYTES:
        _count_cost(data)
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise Malformed(f"the body is not JSON, which has no NaN or Infinity: {error}") from None


def media_of(request: Request) -> str:
    """The media type of the request's body, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def refuse_encoded(request: Request) -> None:
    """Raises UnsupportedMedia for a compressed body: its real size is not known before it is unpacked."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise UnsupportedMedia(
            f"this service does not read Content-Encoding {encoding[:50]}: send the body uncompressed",
            field="Content-Encoding",
        )


def declared_length(request: Request, limit: int) -> int | None:
    """The body's length by its Content-Length; None when it comes in chunks. Raises BodyTooLarge."""
    declared = request.headers.get("content-length", "")
    if not declared.isdecimal():
        return None
    if int(declared) > limit:
        raise BodyTooLarge(
            f"the body has {declared} bytes; at most {limit} are allowed", limit=limit
        )
    return int(declared)


async def read_whole(request: Request, limit: int) -> Data:
    """The body's bytes. Raises BodyTooLarge, BodyTooSlow, Malformed."""
    declared = declared_length(request, limit)
    seconds = BODY_S + (limit if declared is None else declared) / BODY_BYTES_PER_S
    try:
        async with asyncio.timeout(seconds):
            data, more = await next_piece(request)
            whole = memoryview(data) if not more else await _read_on(request, limit, declared, data)
    except TimeoutError:
        raise BodyTooSlow(f"the body did not arrive within {seconds:.0f} s") from None
    if len(whole) > limit:
        raise _too_large(limit)
    return whole


async def next_piece(request: Request) -> tuple[bytes, bool]:
    """The next bytes of the body, and whether more will follow. Raises Malformed when the client has left."""
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise Malformed("the client closed the connection before its body was complete")
    return message.get("body", b""), message.get("more_body", False)


@contextmanager
def departures(request: Request) -> Iterator[None]:
    """Call back whoever works for this request, in whichever thread, when its client leaves. Its body has been read."""
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

    token = on_departure.set(call_then)
    try:
        yield
    finally:
        on_departure.reset(token)
        for watcher in watchers:
            watcher.cancel()


def _in_turn(parse: Callable[[], Parsed]) -> Parsed:
    """What `parse` returns, once no other large body is parsed."""
    with _one_large:
        return parse()


def _parsed(
    media: str,
    data: Data,
    files: list[bytes] | None,
    column: str | None,
    most_rows: int,
    query: dict[str, Any],
    model: type[BodyT],
) -> tuple[BodyT, arrow.Rows | None]:
    """The body and the query string as the model, and the body's Arrow rows."""
    rows = None
    if media == npy.MEDIA:
        fields: Any = {"vectors": npy.read(data)}
    elif media == arrow.MEDIA:
        rows = arrow.read(data, column, most_rows)
        fields = {"vectors": rows.vectors}
    else:
        fields = parse_json(data)
        if files is not None:
            fields = _with_files(fields, files)
    if query:
        fields = query_fields.join(fields, query, only_vectors=media in VECTOR_MEDIA)
    return validated(model, fields, "query string" if media in VECTOR_MEDIA else "body"), rows


def _count_cost(data: Data) -> None:
    """Take room for what the JSON costs in memory. What stands within texts is counted too.

    Raises BodyTooLarge for more values, lists, objects or texts than one body may have, Overloaded and TooMuchAtOnce.
    """
    commas, lists, objects, quotes = (_count(data, character) for character in b',[{"')
    for what, count, most in (
        ("commas", commas, MOST_VALUES),
        ("brackets and braces", lists + objects, MOST_CONTAINERS),
        ("quotation marks", quotes, MOST_QUOTES),
    ):
        if count > most:
            raise BodyTooLarge(
                f"the JSON body has {count} {what}, and at most {most} are allowed: send fewer items at once, or vectors as "
                "base64, npy or Arrow",
                limit=most,
            )
    cost = (
        commas * VALUE_BYTES
        + lists * LIST_BYTES
        + objects * OBJECT_BYTES
        + quotes * QUOTE_BYTES
        + len(data) * TEXT_BYTES
    )
    answer_bytes.get()(max(0, cost // MEMORY_FACTOR - len(data)))


def _count(data: Data, character: int) -> int:
    blocks = (
        np.frombuffer(data, np.uint8, min(BLOCK, len(data) - start), start)
        for start in range(0, len(data), BLOCK)
    )
    return sum(int(np.count_nonzero(block == character)) for block in blocks)


def _with_files(body: Any, files: list[bytes]) -> Any:
    """The JSON part's members, and the files as `inputs`. Raises InvalidRequest."""
    if not isinstance(body, dict) or "inputs" in body:
        raise InvalidRequest(
            "the part `request` must be a JSON object without `inputs`: the files are the inputs",
            field="request",
        )
    return {**body, "inputs": files}


def _note_repeat(request: Request, data: Data, files: list[bytes]) -> None:
    """Note the Idempotency-Key and the request it belongs to. Raises InvalidRequest."""
    key = request.headers.get("idempotency-key")
    if key is None:
        return
    if not IDEMPOTENCY_KEY.fullmatch(key):
        raise InvalidRequest(
            "an Idempotency-Key has 1 to 255 printable ASCII characters", field="Idempotency-Key"
        )
    about = f"{request.method} {request.url.path} {request.url.query} {request.headers.get('prefer', '')}\n"
    fingerprint = hashlib.sha256(about.encode())
    for part in (data, *files):
        fingerprint.update(len(part).to_bytes(8))
        fingerprint.update(part)
    origin.set(replace(origin.get(), repeat=Repeat(key, fingerprint.hexdigest())))


async def _read_on(request: Request, limit: int, declared: int | None, data: bytes) -> memoryview:
    """The rest of the body behind its first bytes, in one buffer: at once as large as the body is declared to be."""
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
        f"the body has more than {limit} bytes, which is the most allowed", limit=limit
    )
