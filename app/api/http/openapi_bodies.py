"""Adds to the OpenAPI document the bodies that dependencies read, and the problem document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from pydantic.json_schema import models_json_schema

from app.api.codecs import media_types
from app.api.http import query_fields
from app.api.http.bodies import BodyFormats, read_body, read_call
from app.api.http.deps import bearer
from app.api.http.problems import Problem
from app.api.schemas.fields import Body
from app.types import Scope

_BINARY = {
    "type": "string",
    "format": "binary",
    "description": "A matrix of floats, or record batches with a column of lists of floats.",
}
_COLUMN = {
    "name": "column",
    "in": "query",
    "description": "Arrow, Parquet: the column with the vectors, if several hold lists of floats.",
    "schema": {"type": "string"},
}

#: a route's `responses` for answers in npy, Arrow and Parquet
VECTOR_ANSWERS: dict[str, Any] = {
    "content": {media: {"schema": _BINARY} for media in media_types.VECTORS}
}

#: a route's `responses` for answers in npy and Arrow
STREAM_ANSWERS: dict[str, Any] = {
    "content": {media: {"schema": _BINARY} for media in media_types.STREAMS}
}


def install(app: FastAPI, routers: Iterable[APIRouter]) -> None:
    """Make `app.openapi()` describe the request bodies of the routes, and problem documents."""
    make = app.openapi
    bodies = [body for router in routers for body in _bodies(router)]

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _complete(make(), bodies)
        return make()

    app.openapi = openapi  # type: ignore[method-assign]


#: a route that reads a body, the body's model, and its formats
_Read = tuple[APIRoute, type[Body], BodyFormats]


def _complete(document: dict[str, Any], bodies: list[_Read]) -> None:
    models = {model for _, model, _ in bodies}
    references, definitions = models_json_schema(
        [*((model, "validation") for model in sorted(models, key=str)), (Problem, "validation")],
        ref_template="#/components/schemas/{model}",
    )
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for name, schema in definitions["$defs"].items():
        if schemas.setdefault(name, schema) != schema:
            raise RuntimeError(f"two models of the API have the name {name}: rename one")
    for route, model, reading in bodies:
        for method in route.methods or ():
            operation = document["paths"][route.path_format][method.lower()]
            _describe(operation, references[model, "validation"], model, reading)


def _describe(
    operation: dict[str, Any], schema: dict[str, Any], model: type[Body], reading: BodyFormats
) -> None:
    content: dict[str, Any] = {media_types.JSON: {"schema": schema}}
    if reading.vectors:
        described = reading.readers.described
        binary = _BINARY if described is None else {**_BINARY, "description": described}
        content |= {media: {"schema": binary} for media in reading.readers.media}
        if described is None:
            operation.setdefault("parameters", []).append(_COLUMN)
    operation.setdefault("security", [{bearer.scheme_name: [Scope.read.value]}])
    operation["requestBody"] = {"required": True, "content": content}
    if reading.query:
        operation.setdefault("parameters", []).extend(
            query_fields.parameters(model, streams=reading.streams)
        )


def _bodies(router: APIRouter) -> Iterator[_Read]:
    for route in router.routes:
        if isinstance(route, APIRoute):
            for dependency in route.dependant.dependencies:
                call = dependency.call
                if isinstance(call, partial) and call.func in (read_body, read_call):
                    model, reading = call.args
                    yield route, model, reading
