"""Request bodies: received within a size and a deadline, parsed, and validated by a model.

A route declares `body: Annotated[Model, json_body(Model)]` and `openapi_extra=body_docs(Model)`,
both with `npy=True` if its body may be an npy file, whose fields are in the query string.
A route that answers vectors in the format of its body declares
`call: Annotated[Call[Model], vector_call(Model)]`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import orjson
from anyio import to_thread
from fastapi import Depends, FastAPI, Request
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ValidationError
from pydantic.json_schema import models_json_schema

from app.access.service import Caller
from app.context import Services
from app.errors import (
    BodyTooLarge,
    BodyTooSlow,
    InvalidRequest,
    Malformed,
    ScopeMissing,
    UnsupportedMedia,
)
from app.http import media_types, query_fields
from app.http import npy as npy_files
from app.http.field_errors import Place, located
from app.http.fields import Body
from app.http.problems import Problem
from app.request_context import RequestContext
from app.types import Scope

Data = bytes | memoryview

#: time for a body to arrive, and one more second for each BODY_BYTES_PER_S
BODY_S = 20
BODY_BYTES_PER_S = 256 * 1024

#: how long the server discards the rest of a body before it closes the connection: a client that
#: is cut off while it sends does not see the answer
DISCARD_S = 10

#: larger bodies of JSON are parsed in a thread, one at a time: several would compete for
#: the GIL and delay all other requests
INLINE_BODY_BYTES = 64 * 1024

#: most lists and objects of a larger JSON body, by their first characters. orjson builds them
#: without a pause, and Python's garbage collector walks them: 2.8 million would take a second
MAX_CONTAINERS = 2**19

BodyT = TypeVar("BodyT", bound=Body)

bearer = HTTPBearer(
    auto_error=False,
    description="An API key: `anc_...`. By default, a server on loopback requires none.",
)


def context_of(request: Request, *scopes: str) -> RequestContext:
    """Returns the context that AdmissionMiddleware made."""
    state = request.scope["state"]
    caller: Caller = state["caller"]
    for scope in scopes:
        if scope not in caller.scopes and not caller.may(Scope(scope)):
            held = ", ".join(sorted(caller.scopes))
            raise ScopeMissing(
                f"This route needs a key with the scope `{scope}`. This key has: {held}."
            )
    context: RequestContext = state["context"]
    return context


@dataclass(frozen=True)
class Call(Generic[BodyT]):
    """One request of a route that takes vectors.

    body   the validated fields
    media  the media type of the body
    begun, arrived, parsed  times of time.perf_counter()
    """

    request: Request
    services: Services
    context: RequestContext
    body: BodyT
    media: str
    begun: float
    arrived: float
    parsed: float

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


def json_body(model: type[Body], *, npy: bool = False) -> Any:
    """Returns a dependency for the validated body.

    A route declares it after the context, which refuses a key without the scope.
    """
    return Depends(partial(read_body, model, npy))


def vector_call(model: type[Body], *, npy: bool = True) -> Any:
    """Returns a dependency for the route's `Call`, with fields in the body or the query string.

    It is the route's only dependency, because FastAPI takes time for each one.
    """
    return Depends(partial(read_call, model, npy))


#: the models of all bodies, which `install` adds to the OpenAPI document
_described: list[type[BaseModel]] = [Problem]

_FILE = {"schema": {"type": "string", "format": "binary", "description": "A matrix of floats."}}

#: a route's `responses` for answers in npy
VECTOR_ANSWERS: dict[str, Any] = {"content": {media_types.NPY: _FILE}}


def body_docs(
    model: type[BaseModel], *, npy: bool = False, is_call: bool = False
) -> dict[str, Any]:
    """Returns a route's `openapi_extra`: its request body, and fields in the query string.

    is_call  the route has a `vector_call`, which FastAPI does not know to need a key
    """
    _described.append(model)
    reference = {"$ref": f"#/components/schemas/{model.__name__}"}
    content: dict[str, Any] = {media_types.JSON: {"schema": reference}}
    extra: dict[str, Any] = {"requestBody": {"required": True, "content": content}}
    if npy:
        content[media_types.NPY] = _FILE
        extra["parameters"] = query_fields.parameters(model)
    if is_call:
        extra["security"] = [{bearer.scheme_name: [Scope.read.value]}]
    return extra


def install(app: FastAPI) -> None:
    """Makes `app.openapi()` hold the models of request bodies, and problem documents."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schemas = make().setdefault("components", {}).setdefault("schemas", {})
            _, found = models_json_schema(
                [(model, "validation") for model in dict.fromkeys(_described)],
                ref_template="#/components/schemas/{model}",
            )
            for name, schema in found["$defs"].items():
                if schemas.setdefault(name, schema) != schema:
                    raise RuntimeError(f"two models of the API have the name {name}: rename one")
        return make()

    app.openapi = openapi  # type: ignore[method-assign]


async def read_no_body(request: Request) -> None:
    """Reads the body of a call without fields: nothing, or `{}`."""
    body = await read_whole_body(request)
    if bytes(body.data).strip() not in (b"", b"{}"):
        raise InvalidRequest("This call takes no fields. Send no body, or `{}`.")


async def read_body(model: type[BodyT], npy: bool, request: Request) -> AsyncIterator[BodyT]:
    """Yields the validated body, and watches for the client's departure."""
    body, _ = await _read(model, npy, request)
    with watch_departure(request):
        yield body


async def read_call(model: type[BodyT], npy: bool, request: Request) -> Call[BodyT]:
    """Returns the validated request.

    Raises UnsupportedMedia, BodyTooLarge (before reading, if the length is declared), BodyTooSlow,
    Malformed, the errors of npy and vectors fields, InvalidRequest for a wrong query string,
    RequestValidationError, and ScopeMissing for a key that may not read.
    """
    begun = time.perf_counter()
    context = context_of(request, Scope.read)
    body, whole = await _read(model, npy, request)
    parsed = time.perf_counter()
    services: Services = request.app.state.services
    return Call(request, services, context, body, whole.media, begun, whole.arrived, parsed)


async def _read(model: type[BodyT], npy: bool, request: Request) -> tuple[BodyT, WholeBody]:
    """Returns the validated body, and the body as it arrived."""
    media = media_of(request)
    refuse_encoded(request)
    readable = (media_types.JSON, media_types.NPY) if npy else (media_types.JSON,)
    if media not in readable:
        raise UnsupportedMedia(wrong_media(request, media, readable))
    query: dict[str, Any] = {}
    if request.scope["query_string"]:
        query = query_fields.read(request, model if npy else None)
    whole = await read_whole_body(request)
    parse = partial(_parse, whole, query, model)
    if whole.media == media_types.NPY or len(whole.data) <= INLINE_BODY_BYTES:
        return parse(), whole
    return await to_thread.run_sync(parse, limiter=request.app.state.admission.parsing), whole


def wrong_media(request: Request, media: str, readable: tuple[str, ...]) -> str:
    """Returns what to answer to a Content-Type that the route does not read."""
    route = f"{request.method} {request.url.path}"
    sent = f"{route} does not read {media[:100]}" if media else "The request has no Content-Type"
    return f"{sent}. Send {' or '.join(readable)}."


def validate(model: type[BodyT], fields: Any, place: Place = "body") -> BodyT:
    """Returns the fields as the model; `place` is where the client sent them."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise located(error, model, place=place) from None


def _parse(whole: WholeBody, query: dict[str, Any], model: type[BodyT]) -> BodyT:
    """Returns the body and the query string as the model."""
    only_vectors = whole.media == media_types.NPY
    if only_vectors:
        # each route checks its limit of rows
        fields: Any = {"vectors": npy_files.read(whole.data)}
    else:
        fields = _parse_json(whole.data)
    if query:
        fields = query_fields.join(fields, query, only_vectors=only_vectors)
    return validate(model, fields, "query string" if only_vectors else "body")


def _parse_json(data: Data) -> Any:
    """Returns the JSON as Python objects."""
    if len(data) > INLINE_BODY_BYTES:
        text = bytes(data)
        if text.count(b"[") + text.count(b"{") > MAX_CONTAINERS:
            raise BodyTooLarge(
                f"The JSON body has more than {MAX_CONTAINERS} lists and objects, the limit. Send "
                "fewer items at once, or send vectors as base64 or npy.",
                limit=MAX_CONTAINERS,
            )
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise Malformed(
            f"The body does not parse as JSON, which has no NaN or Infinity: {error}."
        ) from None


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
    """A body as it arrived, and when it was complete: a time of time.perf_counter()."""

    media: str
    data: Data
    arrived: float


async def read_whole_body(request: Request) -> WholeBody:
    """Returns the body.

    JSON has a smaller limit than npy: parsing it blocks all other threads.
    """
    media, admission = media_of(request), request.app.state.admission
    refuse_encoded(request)
    most = admission.max_body_bytes
    if media != media_types.NPY:
        most = min(admission.max_json, most)
    data = await read_whole(request, most)
    return WholeBody(media, data, time.perf_counter())


async def read_whole(request: Request, limit: int) -> Data:
    """Returns the body. One above the limit is read on and dropped, up to twice the limit.

    A client that sends all before it reads would not see the answer to a body left unread.
    """
    length = request.headers.get("content-length", "")
    declared = int(length) if length.isdecimal() else limit
    if declared > 2 * limit:
        raise _too_large(limit)
    seconds = BODY_S + declared / BODY_BYTES_PER_S
    try:
        async with asyncio.timeout(seconds):
            data, more = await _next_piece(request)
            if not more and len(data) <= limit:
                return data
            whole = bytearray(declared if length and declared <= limit else 0)
            end = 0
            while True:
                if end + len(data) <= limit:
                    whole[end : end + len(data)] = data
                end += len(data)
                if not more or end > 2 * limit:
                    break
                data, more = await _next_piece(request)
    except TimeoutError:
        raise BodyTooSlow(f"The body did not arrive within {seconds:.0f} s.") from None
    if end > limit:
        raise _too_large(limit)
    return memoryview(whole)[:end]


async def _next_piece(request: Request) -> tuple[bytes, bool]:
    """Returns the next bytes of the body, and whether more follow."""
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


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"The body has more than {limit} bytes, the limit. Split the request; npy may be larger "
        "than JSON.",
        limit=limit,
    )
