"""Routes of vectors in and out, asked once a query: JSON, npy or Arrow in, and any of them out.

They go without what the framework does for every route, which is much of what a small answer costs. Fields may come in the query
string as well: a body of npy or Arrow has no other place for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, cached_property
from typing import Annotated, Any, get_type_hints

import orjson
from fastapi import Depends, Request, Response
from starlette.concurrency import run_in_threadpool
from torch import Tensor

from app.api import answers, arrow, bodies, npy, streams
from app.api.answers import Writer
from app.api.bodies import Given, VectorsRoute
from app.api.deps import project_of
from app.api.direct import DirectRoute
from app.api.wire import Body
from app.errors import InvalidRequest
from app.maths.translator import Precision
from app.services import serving
from app.services.context import Services
from app.services.encoding import Inputs
from app.services.serving import Answer, Asked
from app.types import Scope

BINARY = {
    "type": "string",
    "format": "binary",
    "description": "a matrix of floats, or record batches with a column of lists of them",
}
COLUMN = {"type": "string", "description": "of Arrow: which column holds the vectors, if there are several"}

#: parameters that are no fields of a request: how its body is to be read
OF_THE_BODY = frozenset({"column", "stream"})


def _no_writer() -> Writer:
    """The route itself chooses."""
    raise NotImplementedError


AnswerWriter = Annotated[Writer, Depends(_no_writer)]

#: what OpenAPI says of bodies and answers that are no JSON
BULK: dict[str, Any] = {"content": {media: {"schema": BINARY} for media in (npy.MEDIA, arrow.MEDIA)}}


class FieldsRoute(VectorsRoute):
    """A route of vectors in, whose other fields may come in the query string as well."""

    def fields(self, request: Request, given: Given) -> Any:
        """Those of the body and of the query string. Raises InvalidRequest."""
        return together(request, given, get_type_hints(self.endpoint)["body"])


class VectorRoute(DirectRoute):
    """Calls its endpoint with a body, a writer, the services and the caller's project."""

    @cached_property
    def model(self) -> type[Body]:
        """What its fields are."""
        model: type[Body] = get_type_hints(self.endpoint)["body"]
        return model

    async def answer(self, request: Request) -> Response:
        begun = time.perf_counter()
        query = request.scope["query_string"]
        if query and self._is_stream(request):
            return await self._stream(request)
        given = await bodies.read(request, vectors=True)
        project = project_of(request, Scope.read)
        body: Any = bodies.validated(self.model, together(request, given, self.model) if query else given.fields)
        writer = answers.choose(request, given, body.encoding, body.dtype)
        parsed = time.perf_counter()
        # Only encoding asks whether the client has left.
        with bodies.watched(request) if body.inputs is not None else nullcontext():
            response: Response = await self.endpoint(body, writer, request.app.state.services, project)
        response.headers["Server-Timing"] = _timing(given.arrived - begun, parsed - given.arrived, time.perf_counter() - parsed)
        return response

    def _is_stream(self, request: Request) -> bool:
        """Whether to answer while the body comes. Raises InvalidRequest."""
        asked = request.query_params.get("stream", "false")
        if asked not in ("true", "false") or (asked == "true" and not hasattr(self.endpoint, "stream")):
            raise InvalidRequest("stream is true or false, and true only where vectors go in and out", field="stream")
        return asked == "true"

    async def _stream(self, request: Request) -> Response:
        project = project_of(request, Scope.read)
        body: Any = bodies.validated(self.model, from_query(request, self.model))
        if body.encoding != "float":
            raise InvalidRequest("base64 is of JSON answers", field="encoding")
        begin: Any = self.endpoint
        plan = await begin.stream(body, request.app.state.services, project)
        return await streams.respond(request, plan)


def _timing(read: float, parse: float, answer: float) -> str:
    """Where the time went: until the body had come, to understand it, to compute and write the answer."""
    return f"read;dur={read * 1e3:.3f}, parse;dur={parse * 1e3:.3f}, answer;dur={answer * 1e3:.3f}"


async def served(
    services: Services,
    project: str,
    asked: Asked,
    vectors: Tensor | None,
    inputs: Inputs | None,
    writer: Writer,
    precision: Precision = "float32",
) -> Answer:
    """Vectors or inputs by what serves them: found and begun here, if that takes no IO; in a thread, if it might."""
    found = None if vectors is None else serving.find(services, project, asked)
    if found is None or vectors is None:
        return await run_in_threadpool(
            serving.apply, services, project, asked, vectors=vectors, inputs=inputs, form=writer.form, precision=precision
        )
    running = found.begin(services, vectors, writer.form, precision)
    await running.wait()
    return Answer(serving.result(running, found.reads), found, vectors)


async def write(writer: Writer, vectors: Tensor, about: dict[str, Any], *, name: str = "vectors") -> Response:
    """The answer, written by a thread if that takes long."""
    if writer.is_small(vectors):
        return writer.respond(vectors, about, name=name)
    return await run_in_threadpool(writer.respond, vectors, about, name=name)


def described(model: type[Body], *, streams: bool = False) -> dict[str, Any]:
    """What OpenAPI is told beside what the framework finds out: other bodies, and the fields that come in the query string."""
    _, options = _kinds(model)
    schema = model.model_json_schema()
    tables = {"vectors", "relative", "inputs", "input_type", "native_vectors", "targets", "labels", "options"}
    plain = {name: each for name, each in schema["properties"].items() if name not in tables}
    if options:
        plain |= schema["$defs"]["Options"]["properties"]
    if streams:
        plain["stream"] = {"type": "boolean", "description": "of npy and Arrow: answer while the body comes, however long it is"}
    if "relative" in schema["properties"]:
        plain["relative"] = {"type": "boolean", "description": "of npy and Arrow: the body's rows are relative vectors"}
    plain["column"] = COLUMN
    shown = [{"name": name, "in": "query", "schema": _inline(each)} for name, each in plain.items()]
    return {"requestBody": BULK, "parameters": shown}


def _inline(schema: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name not in ("title", "examples")}


def streamed(begin: Any) -> Callable[[Any], Any]:
    """Mark an endpoint that can also answer batch by batch: `begin` makes what serves the stream."""

    def mark(endpoint: Any) -> Any:
        endpoint.stream = begin
        return endpoint

    return mark


def together(request: Request, given: Given, model: type[Body]) -> Any:
    """The fields of a body, and those of the query string. Raises InvalidRequest for one that is in both."""
    fields, extra = given.fields, from_query(request, model)
    bodies.refuse_column(request)
    if given.media in (npy.MEDIA, arrow.MEDIA) and extra.get("relative") is True:
        fields = {"relative": fields["vectors"]}
        del extra["relative"]
    if not isinstance(fields, dict):
        return fields
    for name in extra:
        if name in fields:
            raise InvalidRequest(f"{name} is in the body and in the query string", field=name)
    return {**fields, **extra}


def from_query(request: Request, model: type[Body]) -> dict[str, Any]:
    """Fields given in the query string; a method's options have no prefix there. Raises InvalidRequest."""
    texts, options = _kinds(model)
    fields: dict[str, Any] = {}
    seen: set[str] = set()
    for name, value in request.query_params.multi_items():
        if name in seen:
            raise InvalidRequest(f"{name} is given twice", field=name)
        seen.add(name)
        if name in OF_THE_BODY:
            continue
        if options and name == "options":
            raise InvalidRequest("options have no prefix in a query string: delta=0.5", field=name)
        if name == "relative" and "relative" in model.model_fields:
            if value not in ("true", "false"):
                raise InvalidRequest("in a query string, relative is true or false: whether the body's rows are", field=name)
            if value == "true":
                fields[name] = True
            continue
        place = fields.setdefault("options", {}) if name in options else fields
        place[name] = value if name in texts else _literal(value)
    return fields


def _literal(text: str) -> Any:
    """A number, true or false; anything else is left for the field to refuse."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return text if isinstance(value, dict | list | str) else value


@cache
def _kinds(model: type[Body]) -> tuple[frozenset[str], frozenset[str]]:
    """The fields of a request that are texts, and the options of its method."""
    schema = model.model_json_schema()
    texts = {name for name, each in schema["properties"].items() if _is_text(each)}
    options = set() if "options" not in schema["properties"] else set(schema["$defs"]["Options"]["properties"])
    return frozenset(texts), frozenset(options)


def _is_text(schema: dict[str, Any]) -> bool:
    return schema.get("type") == "string" or any(map(_is_text, schema.get("anyOf", [])))
