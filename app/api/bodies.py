"""Reading a request's body: with a limit and a deadline, into one buffer, and parsed by what its Content-Type says."""

from __future__ import annotations

import asyncio
import codecs
import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import orjson
import simdjson
import torch
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.types import Scope
from torch import Tensor

from app.api import arrow, multipart, npy
from app.api.wire import Body
from app.errors import BodyTooLarge, BodyTooSlow, InvalidRequest, Malformed, UnsupportedMedia
from app.services.context import Repeat, on_departure, origin

JSON = "application/json"

#: a body arrives within so long, and so much longer for its bytes: it holds a place among the requests answered now
BODY_S = 20
BODY_BYTES_PER_S = 256 * 1024

#: lists and objects of one body: each costs many times its bytes in memory
MOST_CONTAINERS = 2**18
#: bytes looked at at once to count them
BLOCK = 2**20

#: bodies above this are parsed in a thread, so that small requests need not wait for them
INLINE_BYTES = 64 * 1024

#: bodies above this may hold tables worth an array
TABLE_BYTES = 1024

#: fields whose lists of lists are read straight into one array
TABLES = frozenset({"vectors", "relative", "native_vectors", "targets", "native", "corpus", "pool"})

IDEMPOTENCY_KEY = re.compile(r"[ -~]{1,255}")

BodyT = TypeVar("BodyT", bound=Body)

_parsers = threading.local()

#: what a body holds
Data = bytes | memoryview


class JsonRequest(Request):
    """A request whose body was read and parsed before the framework asks for it."""

    parsed: Any

    async def body(self) -> bytes:
        return b"parsed"

    async def json(self) -> Any:
        return self.parsed


class JsonRoute(APIRoute):
    """A route that reads its body with a size limit and orjson."""

    #: whether the body may be vectors alone, in npy or Arrow
    takes_vectors = False

    def fields(self, request: Request, given: Given) -> Any:
        """What the framework validates. Raises AnchorageError."""
        return given.fields

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle

        async def read_then_handle(request: Request) -> Response:
            given = await read(request, vectors=self.takes_vectors)
            parsed = JsonRequest(_as_json(request.scope), request.receive)
            parsed.parsed = self.fields(request, given)
            with watched(request):
                return await handle(parsed)

        return read_then_handle


class VectorsRoute(JsonRoute):
    """A route whose body may also be vectors alone, in npy or Arrow."""

    takes_vectors = True

    def fields(self, request: Request, given: Given) -> Any:
        """Those of the body, and none of the query string. Raises InvalidRequest."""
        _refuse_query(request)
        return given.fields


@dataclass
class Given:
    """What a body held: its fields, and the rows that came in Arrow, if they did; `arrived`: when it was whole."""

    media: str
    fields: Any
    arrived: float
    rows: arrow.Rows | None = None


def validated(model: type[BodyT], parsed: Any) -> BodyT:
    """A parsed body, for a route that the framework does not validate for. Raises RequestValidationError, as it would."""
    try:
        return model.model_validate(parsed)
    except ValidationError as error:
        found = error.errors(include_url=False)
        raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in found]) from None


@contextmanager
def watched(request: Request) -> Iterator[None]:
    """Let whoever works for this request, in whichever thread, hear when its client leaves. Its body has been read."""
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
        elif watchers and watchers[0].done():  # the client left before this call was there to hear it
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


def media_of(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def refuse_encoded(request: Request) -> None:
    """Raises UnsupportedMedia for a body that would have to be unpacked first: to which size, nobody knows."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise UnsupportedMedia(f"a body of Content-Encoding {encoding[:50]}: send it as it is", field="Content-Encoding")


def refuse_column(request: Request) -> None:
    """Raises InvalidRequest for a column that is named where there are none."""
    if "column" in request.query_params and media_of(request) != arrow.MEDIA:
        raise InvalidRequest("column is of Arrow bodies", field="column")


async def read(request: Request, *, vectors: bool = False) -> Given:
    """The body: JSON, parts (`app.api.multipart`), or where `vectors` may come alone, npy or Arrow.

    Raises UnsupportedMedia, BodyTooLarge (before the body is read, when its length is declared), BodyTooSlow, Malformed, the
    errors of npy and Arrow, and InvalidRequest for an Idempotency-Key that is none.
    """
    media = media_of(request)
    refuse_encoded(request)
    known = (JSON, multipart.MEDIA, npy.MEDIA, arrow.MEDIA) if vectors else (JSON, multipart.MEDIA)
    if media not in known:
        raise UnsupportedMedia(f"expected a body of {' or '.join(known)}, got {media or 'no content type'}")
    data = await read_whole(request, request.app.state.admission.max_body_bytes)
    arrived = time.perf_counter()
    if media != multipart.MEDIA:  # whose boundary is another each time
        _note_repeat(request, data)
    if media == JSON:
        fields = await run_in_threadpool(parse, data) if len(data) > INLINE_BYTES else parse(data)
        return Given(media, fields, arrived)
    if media == npy.MEDIA:
        return Given(media, {"vectors": npy.read(data)}, arrived)
    if media == arrow.MEDIA:
        limits = request.app.state.services.limits
        most = max(limits.vectors, limits.pool)  # each route's own limit comes later
        rows = await run_in_threadpool(arrow.read, data, request.query_params.get("column"), most)
        return Given(media, {"vectors": rows.vectors}, arrived, rows)
    document, files = await run_in_threadpool(multipart.split, request.headers["content-type"], bytes(data))
    _note_repeat(request, b"".join(len(part).to_bytes(8) + part for part in (document, *files)))
    return Given(media, _with_files(parse(document), files), arrived)


async def read_json(request: Request) -> Any:
    """The fields of a body of JSON or parts. Raises as `read`."""
    return (await read(request)).fields


def _refuse_query(request: Request) -> None:
    """Raises InvalidRequest for what nobody would look at."""
    for name in request.query_params:
        if name != "column" or media_of(request) != arrow.MEDIA:
            raise InvalidRequest(f"{name[:100]} has no place in this query string: column has, of Arrow bodies", field=name[:100])


def _as_json(scope: Scope) -> Scope:
    """The framework takes a body for JSON by its header alone."""
    others = [(name, value) for name, value in scope["headers"] if name != b"content-type"]
    return {**scope, "headers": [*others, (b"content-type", b"application/json")]}


def _with_files(body: Any, files: list[bytes]) -> Any:
    """The JSON part's members, and the files as `inputs`. Raises InvalidRequest."""
    if not isinstance(body, dict) or "inputs" in body:
        raise InvalidRequest("the part `request` is a JSON object, and the files are its inputs", field="request")
    return {**body, "inputs": files}


def _note_repeat(request: Request, data: Data) -> None:
    """Let creating use cases know that the client may send this request again. Raises InvalidRequest."""
    key = request.headers.get("idempotency-key")
    if key is None:
        return
    if not IDEMPOTENCY_KEY.fullmatch(key):
        raise InvalidRequest("an Idempotency-Key is 1 to 255 printable ASCII characters", field="Idempotency-Key")
    about = f"{request.method} {request.url.path} {request.url.query} {request.headers.get('prefer', '')}\n"
    fingerprint = hashlib.sha256(about.encode())
    fingerprint.update(data)
    origin.set(replace(origin.get(), repeat=Repeat(key, fingerprint.hexdigest())))


def declared_length(request: Request, limit: int) -> int | None:
    """How long the body is said to be; None when it comes in chunks. Raises BodyTooLarge."""
    declared = request.headers.get("content-length", "")
    if not declared.isdecimal():
        return None
    if int(declared) > limit:
        raise BodyTooLarge(f"a body of {declared} bytes, {limit} are allowed", limit=limit)
    return int(declared)


async def read_whole(request: Request, limit: int) -> Data:
    """The body's bytes, each copied once at most. Raises BodyTooLarge, BodyTooSlow, Malformed."""
    is_whole: Callable[[], bool] | None = request.scope["state"].get("body_is_whole")
    if is_whole is not None and is_whole():  # so there is nothing to wait for
        data, _ = await next_piece(request)
        if len(data) > limit:
            raise _too_large(limit)
        return data
    declared = declared_length(request, limit)
    seconds = BODY_S + (limit if declared is None else declared) / BODY_BYTES_PER_S
    try:
        async with asyncio.timeout(seconds):
            data, more = await next_piece(request)
            if not more:
                whole: Data = data
            elif declared is not None:
                whole = await _read_into(request, limit, np.empty(declared, np.uint8).data, data)
            else:
                whole = await _read_growing(request, limit, data)
    except TimeoutError:
        raise BodyTooSlow(f"the body did not arrive within {seconds:.0f} s") from None
    if len(whole) > limit:
        raise _too_large(limit)
    return whole


async def next_piece(request: Request) -> tuple[bytes, bool]:
    """What has come of the body, and whether more will. Raises Malformed when the client has left."""
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise Malformed("the client went away before its body was whole")
    return message.get("body", b""), message.get("more_body", False)


async def _read_into(request: Request, limit: int, whole: memoryview, data: bytes) -> Data:
    """The body where it will stay. One that is longer than declared, which a server's own parser would not let pass, grows."""
    end, more = 0, True
    while end + len(data) <= len(whole):
        whole[end : end + len(data)] = data
        end += len(data)
        if not more:
            return whole[:end]
        data, more = await next_piece(request)
    return await _read_growing(request, limit, bytes(whole[:end]) + data, more)


async def _read_growing(request: Request, limit: int, data: bytes, more: bool = True) -> memoryview:
    whole = bytearray(data)
    if len(whole) > limit:
        raise _too_large(limit)
    while more:
        data, more = await next_piece(request)
        whole += data
        if len(whole) > limit:
            raise _too_large(limit)
    return memoryview(whole)


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"a body of more than {limit} bytes, which is what is allowed", limit=limit)


def parse(data: Data) -> Any:
    """JSON as Python's objects; of a large body, the lists of vectors as tensors. Raises BodyTooLarge, Malformed."""
    if len(data) > TABLE_BYTES:
        data = bytes(data)
        lists = data.count(b"[")
        if lists + data.count(b"{") > MOST_CONTAINERS and _containers(data) > MOST_CONTAINERS:
            raise BodyTooLarge(f"a body of more than {MOST_CONTAINERS} lists and objects", limit=MOST_CONTAINERS)
        fields = _parse_tables(data, lists) if lists else None
        if fields is not None:
            return fields
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        reason = f"the body is not JSON: {error}"
    # NaN, Infinity and 1e999 are not JSON, but a client that sends them deserves to hear which rows hold them.
    data = bytes(data)
    try:
        parsed = json.loads(data.decode())
        if b"\\u" in data:
            json.dumps(parsed, ensure_ascii=False).encode()  # refuses half a surrogate pair, which it lets through as well
    except (ValueError, RecursionError):
        raise Malformed(reason) from None
    return parsed


def _parse_tables(data: bytes, lists: int) -> dict[str, Any] | None:
    """An object whose only lists are tables of numbers, as tensors: a third of the time that Python's objects take.

    None for any other body, which is left to those who can say what is wrong with it.
    """
    if data.startswith(codecs.BOM_UTF8):  # which simdjson skips
        return None
    try:
        document = _parser(len(data)).parse(data)
        if not isinstance(document, simdjson.Object):
            return None
        names = list(document.keys())
        if len(set(names)) < len(names):  # the last one counts, as everywhere; here it would be the first
            return None
        fields: dict[str, Any] = {}
        for name in names:
            value = document[name]
            if name in TABLES and isinstance(value, simdjson.Array):
                fields[name] = table = _table(value)
                lists -= 1 + len(table)
            elif isinstance(value, simdjson.Object):
                fields[name] = value.as_dict()
                lists -= sum(isinstance(each, list) for each in fields[name].values())  # the shape of a packed one
            elif isinstance(value, simdjson.Array):
                return None
            else:
                fields[name] = value
    except (ValueError, TypeError, RuntimeError, KeyError):
        return None
    return fields if lists == 0 else None  # one more than there are rows: a list within a row


def _parser(size: int) -> simdjson.Parser:
    """A parser of this thread's: kept for small bodies, as it keeps memory for the largest that it has read."""
    if size > INLINE_BYTES:
        return simdjson.Parser()
    if not hasattr(_parsers, "small"):
        _parsers.small = simdjson.Parser()
    parser: simdjson.Parser = _parsers.small
    return parser


def _table(value: Any) -> Tensor:
    """Raises ValueError and TypeError for anything but rows of as many numbers each."""
    lengths = {len(row) for row in value}
    if len(lengths) != 1 or lengths == {0}:
        raise ValueError
    numbers = np.frombuffer(value.as_buffer(of_type="d"), np.float64)
    return torch.from_numpy(numbers.reshape(len(value), *lengths))


def _containers(data: bytes) -> int:
    """How many lists and objects a JSON text opens, up to a block more than are allowed; brackets within strings do not count."""
    count, slashes, inside = 0, 0, False  # slashes: backslashes right before this block
    for start in range(0, len(data), BLOCK):
        text = np.frombuffer(data, np.uint8, min(BLOCK, len(data) - start), start)
        places = np.arange(len(text))
        last_plain = np.maximum.accumulate(np.where(text == ord("\\"), -1 - slashes, places))
        before = places - np.concatenate(([-slashes], last_plain[:-1] + 1))
        ends = (text == ord('"')) & (before % 2 == 0)
        within = np.logical_xor.accumulate(ends) ^ inside
        count += int(np.count_nonzero(((text == ord("[")) | (text == ord("{"))) & ~within))
        if count > MOST_CONTAINERS:
            break
        slashes, inside = len(text) - 1 - int(last_plain[-1]), bool(within[-1])
    return count
