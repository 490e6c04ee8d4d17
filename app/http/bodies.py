"""Request bodies: received within a size and a deadline, parsed, and validated by a model.

A route declares `body: Annotated[Model, json_body(Model)]`, with `npy=True` if its body may be an
npy file, whose fields are in the query string. A route that answers vectors in the format of its
body declares `call: Annotated[Call[Model], vector_call(Model)]`. `describe_bodies` adds both to the
OpenAPI document.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import orjson
from anyio import to_thread
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ValidationError
from pydantic.json_schema import models_json_schema

from app.context import RequestContext, Services
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
    context: RequestContext = request.scope["state"]["context"]
    for scope in scopes:
        if scope not in context.scopes and not context.may(Scope(scope)):
            held = ", ".join(sorted(context.scopes))
            raise ScopeMissing(
                f"This route needs a key with the scope `{scope}`. This key has: {held}."
            )
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


def json_body(model: type[Body], *, npy: bool = False, optional: bool = False) -> Any:
    """Returns a dependency for the validated body.

    A route declares it after the context, which refuses a key without the scope.

    optional  a request without a body has the fields of an empty one
    """
    return Depends(partial(read_body, model, npy, optional))


def vector_call(model: type[Body], *, npy: bool = True) -> Any:
    """Returns a dependency for the route's `Call`.

    It is the route's only dependency, because FastAPI takes time for each one.
    """
    return Depends(partial(read_call, model, npy))


_FILE = {"schema": {"type": "string", "format": "binary", "description": "A matrix of floats."}}

#: a route's `responses` for answers in npy
VECTOR_ANSWERS: dict[str, Any] = {"content": {media_types.NPY: _FILE}}


def describe_bodies(app: FastAPI, routers: Iterable[APIRouter]) -> None:
    """Makes `app.openapi()` hold the bodies of these routes, and problem documents."""
    models: list[type[BaseModel]] = [Problem]
    for route in (each for router in routers for each in router.routes):
        assert isinstance(route, APIRoute)
        for dependency in route.dependant.dependencies:
            reader = dependency.call
            if isinstance(reader, partial) and reader.func in (read_body, read_call):
                models.append(reader.args[0])
                route.openapi_extra = _body_docs(*reader.args)
                if reader.func is read_call:  # FastAPI does not know that it needs a key
                    route.openapi_extra["security"] = [{bearer.scheme_name: [Scope.read.value]}]
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schemas = make().setdefault("components", {}).setdefault("schemas", {})
            _, found = models_json_schema(
                [(model, "validation") for model in dict.fromkeys(models)],
                ref_template="#/components/schemas/{model}",
            )
            for name, schema in found["$defs"].items():
                if schemas.setdefault(name, schema) != schema:
                    raise RuntimeError(f"two models of the API have the name {name}: rename one")
        return make()

    app.openapi = openapi  # type: ignore[method-assign]


def _body_docs(model: type[Body], npy: bool, optional: bool = False) -> dict[str, Any]:
    """Returns a route's `openapi_extra`: its request body, and fields in the query string."""
    reference = {"$ref": f"#/components/schemas/{model.__name__}"}
    content: dict[str, Any] = {media_types.JSON: {"schema": reference}}
    extra: dict[str, Any] = {"requestBody": {"required": not optional, "content": content}}
    if npy:
        content[media_types.NPY] = _FILE
        extra["parameters"] = query_fields.parameters(model)
    return extra


async def read_no_body(request: Request) -> None:
    """Reads the body of a call without fields: nothing, or `{}`."""
    media_of(request)
    body = await read_whole(request, request.app.state.admission.max_json)
    if bytes(body).strip() not in (b"", b"{}"):
        raise InvalidRequest("This call takes no fields. Send no body, or `{}`.")


async def read_body(
    model: type[BodyT], npy: bool, optional: bool, request: Request
) -> AsyncIterator[BodyT]:
    """Yields the validated body, and watches for the client's departure."""
    headers = request.headers
    is_empty = headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers
    body = model() if optional and is_empty else (await _read(model, npy, request))[0]
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
    body, arrived = await _read(model, npy, request)
    parsed = time.perf_counter()
    services: Services = request.app.state.services
    return Call(request, services, context, body, media_of(request), begun, arrived, parsed)


async def _read(model: type[BodyT], npy: bool, request: Request) -> tuple[BodyT, float]:
    """Returns the validated body, and when all of it was here: a time of time.perf_counter()."""
    media, admission = media_of(request), request.app.state.admission
    readable = (media_types.JSON, media_types.NPY) if npy else (media_types.JSON,)
    if media not in readable:
        route = f"{request.method} {request.url.path}"
        wrong = f"{route} does not read {media[:100]}" if media else "The body has no Content-Type"
        raise UnsupportedMedia(f"{wrong}. Send {' or '.join(readable)}.")
    if media == media_types.NPY:
        data = await read_whole(request, admission.max_body_bytes)
        arrived = time.perf_counter()
        # each route checks its limit of rows
        fields = query_fields.read(request, model, npy_files.read(data))
        return validate(model, fields, "query string"), arrived
    # JSON has a smaller limit than npy: parsing it blocks all other threads
    data = await read_whole(request, min(admission.max_json, admission.max_body_bytes))
    arrived = time.perf_counter()
    parse = partial(_parse, request, model, data)
    if len(data) <= INLINE_BODY_BYTES:
        return parse(), arrived
    return await to_thread.run_sync(parse, limiter=admission.parsing), arrived


def _parse(request: Request, model: type[BodyT], data: Data) -> BodyT:
    """Returns the JSON as the model."""
    fields = _parse_json(data)
    for name in request.query_params:
        raise InvalidRequest(
            f"This request reads no query parameters. Send `{name[:100]}` in the body.",
            field=name[:100],
        )
    return validate(model, fields)


def validate(model: type[BodyT], fields: Any, place: Place = "body") -> BodyT:
    """Returns the fields as the model. In a query string, all values are texts."""
    try:
        return model.model_validate(fields, strict=None if place == "body" else False)
    except ValidationError as error:
        raise located(error, model, place=place) from None


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
    """Returns the media type of the body, without parameters.

    Raises UnsupportedMedia for a compressed body, whose size is unknown until it is unpacked.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise UnsupportedMedia(
            f"The server does not read Content-Encoding {encoding[:50]}. Send the body "
            "uncompressed.",
            field="Content-Encoding",
        )
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


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

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        for call in calls:
            call()

    def register(call: Callable[[], object]) -> None:
        calls.append(call)
        if watcher.done():  # the client has left already
            call()

    watcher = loop.create_task(watch())
    state = request.scope.setdefault("state", {})
    state["on_departure"] = lambda call: loop.call_soon_threadsafe(register, call)
    try:
        yield
    finally:
        del state["on_departure"]
        watcher.cancel()


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"The body has more than {limit} bytes, the limit. Split the request; npy may be larger "
        "than JSON.",
        limit=limit,
    )
