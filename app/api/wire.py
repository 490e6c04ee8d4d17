"""Vectors on the wire: JSON lists and base64, in and out; and the reading of a JSON body.

pydantic validates the envelope only: a vectors field passes through it untouched and is decoded by `matrix`.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import orjson
import torch
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.types import Scope
from torch import Tensor

from app.api import multipart
from app.errors import (
    BadBase64,
    BadDtype,
    BadShape,
    BodyTooLarge,
    BodyTooSlow,
    EmptyVectors,
    InvalidRequest,
    Malformed,
    RaggedRows,
    UnsupportedMedia,
)
from app.services.context import Repeat, on_departure, origin
from app.services.encoding import Inputs as GivenInputs
from app.types import InputRole

#: wire name -> numpy dtype, little-endian
DTYPES = {"float16": "<f2", "float32": "<f4", "float64": "<f8"}

#: a body arrives within so long, and so much longer for its bytes: it holds a place among the requests answered now
BODY_S = 20
BODY_BYTES_PER_S = 256 * 1024

#: lists and objects of one body: each costs many times its bytes in memory
MOST_CONTAINERS = 2**18
#: bytes looked at at once to count them
BLOCK = 2**20

#: bodies above this are parsed in a thread, so that small requests need not wait for them
INLINE_BYTES = 64 * 1024

IDEMPOTENCY_KEY = re.compile(r"[ -~]{1,255}")

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"

Name = Annotated[str, Field(pattern=NAME, examples=["minilm"])]
Encoding = Literal["float", "base64"]

#: no body of ours has so many
MOST_FIELDS = 64


def _text_or_file(value: Any) -> Any:
    if not isinstance(value, str | bytes):
        raise PydanticCustomError("string_type", "Input should be a valid string")
    return value


#: texts, or images as base64 or data: URLs; files of a multipart body come as bytes. The first that is none ends the check
Inputs = Annotated[
    list[Annotated[Any, AfterValidator(_text_or_file)]],
    Field(fail_fast=True),
    WithJsonSchema({"type": "array", "items": {"type": "string"}, "description": "texts, or images as base64 or data: URLs"}),
]
#: what inputs are to a search: some encoders put another prompt before each
Role = Annotated[Literal["query", "document"], Field(description="what the inputs are to a search")]

_PACKED = {
    "type": "object",
    "properties": {
        "dtype": {"enum": list(DTYPES)},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 2, "maxItems": 2},
        "base64": {"type": "string", "description": "little-endian, C order"},
    },
    "required": ["dtype", "shape", "base64"],
    "additionalProperties": False,
}
_LISTS = {
    "type": "array",
    "minItems": 1,
    "items": {"type": "array", "minItems": 1, "items": {"type": "number"}},
    "examples": [[[0.1, -0.2], [0.3, 0.4]]],
}

#: a list of vectors in a body: passes pydantic as it is, `matrix` decodes it
Vectors = Annotated[Any, WithJsonSchema({"anyOf": [_LISTS, _PACKED], "title": "Vectors"})]
#: a list of numbers, decoded by `vector`
Numbers = Annotated[Any, WithJsonSchema({"type": "array", "items": {"type": "number"}, "title": "Numbers"})]


class Body(BaseModel):
    """The base of every request body: unknown fields are refused, and no type is guessed."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _few(cls, value: Any) -> Any:
        """An error for each of a million unknown fields would cost minutes and gigabytes."""
        if isinstance(value, dict) and len(value) > MOST_FIELDS:
            raise PydanticCustomError("extra_forbidden", "an object of more fields than any request has")
        return value


class InputsBody(Body):
    """A body that may hold inputs."""

    inputs: Inputs | None = None
    input_type: Role = "document"

    def given_inputs(self) -> GivenInputs | None:
        return None if self.inputs is None else GivenInputs(self.inputs, InputRole(self.input_type))


BodyT = TypeVar("BodyT", bound=Body)


class JsonRequest(Request):
    """A request whose JSON body was read and parsed before the framework asks for it."""

    parsed: Any

    async def body(self) -> bytes:
        return b"parsed"

    async def json(self) -> Any:
        return self.parsed


class JsonRoute(APIRoute):
    """A route that reads its body with a size limit and orjson."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle

        async def read_then_handle(request: Request) -> Response:
            parsed = await read_json(request)
            with watched(request):
                return await handle(parsed)

        return read_then_handle


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


async def read_json(request: Request) -> JsonRequest:
    """The body, of JSON or of parts (`app.api.multipart`).

    Raises UnsupportedMedia, BodyTooLarge (before the body is read, when its length is declared), BodyTooSlow, Malformed, and
    InvalidRequest for an Idempotency-Key that is none.
    """
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media not in ("application/json", multipart.MEDIA):
        raise UnsupportedMedia(f"expected a body of application/json, got {media or 'no content type'}")
    data = await _read_limited(request, request.app.state.admission.max_body_bytes)
    if media != multipart.MEDIA:  # whose boundary is another each time
        _note_repeat(request, data)
    parsed = JsonRequest(_as_json(request.scope), request.receive)
    if media == multipart.MEDIA:
        document, files = await run_in_threadpool(multipart.split, request.headers["content-type"], data)
        _note_repeat(request, b"".join(len(part).to_bytes(8) + part for part in (document, *files)))
        parsed.parsed = _with_files(_parse(document), files)
    else:
        parsed.parsed = await run_in_threadpool(_parse, data) if len(data) > INLINE_BYTES else _parse(data)
    return parsed


def _as_json(scope: Scope) -> Scope:
    """The framework takes a body for JSON by its header alone."""
    others = [(name, value) for name, value in scope["headers"] if name != b"content-type"]
    return {**scope, "headers": [*others, (b"content-type", b"application/json")]}


def _with_files(body: Any, files: list[bytes]) -> Any:
    """The JSON part's members, and the files as `inputs`. Raises InvalidRequest."""
    if not isinstance(body, dict) or "inputs" in body:
        raise InvalidRequest("the part `request` is a JSON object, and the files are its inputs", field="request")
    return {**body, "inputs": files}


def _note_repeat(request: Request, data: bytes) -> None:
    """Let creating use cases know that the client may send this request again. Raises InvalidRequest."""
    key = request.headers.get("idempotency-key")
    if key is None:
        return
    if not IDEMPOTENCY_KEY.fullmatch(key):
        raise InvalidRequest("an Idempotency-Key is 1 to 255 printable ASCII characters", field="Idempotency-Key")
    fingerprint = hashlib.sha256(
        f"{request.method} {request.url.path} {request.headers.get('prefer', '')}\n".encode() + data
    ).hexdigest()
    origin.set(replace(origin.get(), repeat=Repeat(key, fingerprint)))


async def _read_limited(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise BodyTooLarge(f"a body of {declared} bytes, {limit} are allowed", limit=limit)
    data = bytearray()
    seconds = BODY_S + (int(declared) if declared.isdecimal() else limit) / BODY_BYTES_PER_S
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                data += chunk
                if len(data) > limit:
                    raise BodyTooLarge(f"a body of more than {limit} bytes, which is what is allowed", limit=limit)
    except TimeoutError:
        raise BodyTooSlow(f"the body did not arrive within {seconds:.0f} s") from None
    except ClientDisconnect:
        raise Malformed("the client went away before its body was whole") from None
    return bytes(data)


def _parse(data: bytes) -> Any:
    if data.count(b"[") + data.count(b"{") > MOST_CONTAINERS and _containers(data) > MOST_CONTAINERS:
        raise BodyTooLarge(f"a body of more than {MOST_CONTAINERS} lists and objects", limit=MOST_CONTAINERS)
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        reason = f"the body is not JSON: {error}"
    # NaN, Infinity and 1e999 are not JSON, but a client that sends them deserves to hear which rows hold them.
    try:
        parsed = json.loads(data.decode())
        if b"\\u" in data:
            json.dumps(parsed, ensure_ascii=False).encode()  # refuses half a surrogate pair, which it lets through as well
    except (ValueError, RecursionError):
        raise Malformed(reason) from None
    return parsed


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


def matrix(value: Any, field: str) -> Tensor:
    """A vectors field (n, d) as a tensor: float64 from JSON numbers, its own dtype from base64.

    Raises EmptyVectors, RaggedRows, BadShape, BadDtype, BadBase64, naming field and rows. Finiteness is the maths' to check.
    """
    if isinstance(value, Mapping):
        return _packed(value, field)
    if not isinstance(value, list):
        raise BadShape("expected a list of vectors, or an object with dtype, shape and base64", field=field)
    if not value:
        raise EmptyVectors("expected at least one vector", field=field)
    flat = [row for row, vector in enumerate(value) if not isinstance(vector, list)]
    if flat:
        raise BadShape("expected a list of vectors: [[...], [...]]", field=field, rows=flat)
    _check_lengths(value, field)
    return torch.from_numpy(_numbers(value, field))


def vector(value: Any, field: str) -> Tensor:
    """A list of numbers as a float64 tensor. Raises BadShape, BadDtype, naming the places as rows."""
    if not isinstance(value, list):
        raise BadShape("expected a list of numbers", field=field)
    if not value:
        return torch.zeros(0)
    return torch.from_numpy(_numbers([[number] for number in value], field).flatten())


def optional_matrix(value: Any, field: str) -> Tensor | None:
    return None if value is None else matrix(value, field)


def from_base64(text: str, field: str) -> bytes:
    """Raises BadBase64."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:  # binascii.Error is one
        raise BadBase64(f"not base64: {error}", field=field) from None


def encode(vectors: Tensor, encoding: Encoding) -> Any:
    """A tensor in the form the client asks for: an array that `respond` writes as lists, or base64."""
    array = np.ascontiguousarray(vectors.numpy(), dtype="<f4")
    if encoding == "float":
        return array
    return {"dtype": "float32", "shape": list(array.shape), "base64": base64.b64encode(array.data).decode()}


def respond(content: Any, status: int = 200, **headers: str) -> Response:
    """A JSON response by orjson, arrays as lists of their shortest exact decimals."""
    data = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(data, status_code=status, media_type="application/json", headers=headers)


def _check_lengths(value: list[list[Any]], field: str) -> None:
    lengths = [len(vector) for vector in value]
    if min(lengths) == max(lengths):
        return
    [(usual, _)] = Counter(lengths).most_common(1)
    rows = [row for row, length in enumerate(lengths) if length != usual]
    raise RaggedRows(
        f"vectors of different lengths: {len(rows)} of {len(lengths)} do not have {usual} numbers", field=field, rows=rows
    )


def _numbers(rows: list[list[Any]], field: str) -> np.ndarray[Any, Any]:
    """Rows of equal length as float64; anything but JSON numbers is refused by row."""
    # numpy would make numbers of booleans and of text, and a table as wide as the longest text: types first, at C speed.
    if not set(map(type, chain.from_iterable(rows))) <= {float, int}:
        wrong = [row for row, vector in enumerate(rows) if not set(map(type, vector)) <= {float, int}]
        raise BadDtype("expected numbers only", field=field, rows=wrong)
    try:
        return np.array(rows, dtype=np.float64)
    except OverflowError:
        return np.array([[_as_float(number) for number in vector] for vector in rows])


def _as_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:  # an integer of hundreds of digits: out of range is for the maths to say
        return math.inf


def _packed(value: Mapping[str, Any], field: str) -> Tensor:
    if set(value) != {"dtype", "shape", "base64"}:
        raise BadShape("expected an object with exactly dtype, shape and base64", field=field)
    if not isinstance(value["dtype"], str) or value["dtype"] not in DTYPES:
        raise BadDtype(f"dtype must be one of {', '.join(DTYPES)}", field=f"{field}.dtype")
    shape = value["shape"]
    if not isinstance(shape, list) or len(shape) != 2 or not all(type(n) is int and n >= 0 for n in shape):
        raise BadShape("shape must be two whole numbers, [vectors, dimension]", field=f"{field}.shape")
    if not isinstance(value["base64"], str):
        raise BadBase64("expected base64 text", field=f"{field}.base64")
    dtype = np.dtype(DTYPES[value["dtype"]])
    data = from_base64(value["base64"], f"{field}.base64")
    expected = shape[0] * shape[1] * dtype.itemsize
    if len(data) != expected:
        raise BadBase64(
            f"{shape[0]} x {shape[1]} {dtype.name} numbers are {expected} bytes, got {len(data)}",
            field=f"{field}.base64",
        )
    if expected == 0:
        raise EmptyVectors("expected at least one vector of at least one number", field=field)
    # A copy: the bytes of the request are read-only, and torch wants to own what it writes to.
    return torch.from_numpy(np.frombuffer(data, dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=True))
