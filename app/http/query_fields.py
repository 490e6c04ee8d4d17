"""Fields of a request in its query string, beside a body of npy."""

from __future__ import annotations

from functools import cache
from typing import Any

from fastapi import Request
from pydantic import BaseModel
from torch import Tensor

from app.errors import InvalidRequest
from app.http.field_errors import models_in

#: fields that are no parameters of a query string
TABLES = {
    *("vectors", "relative", "options"),
    *("inputs", "input_type", "embeddings", "encoders"),
}


def read(request: Request, model: type[BaseModel], rows: Tensor) -> dict[str, Any]:
    """Returns the fields of the query string, with options by name, and the rows of the body.

    The rows are `relative` with `relative=true`, and else `vectors`.
    """
    options, seen = _option_schemas(model), set[str]()
    fields: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name in seen or name in ("vectors", "options"):
            raise InvalidRequest(
                f"Send `{name[:100]}` once: vectors in the body, and in the query string each "
                "option by its own name, such as `delta=0.5`.",
                field=name[:100],
            )
        seen.add(name)
        (fields.setdefault("options", {}) if name in options else fields)[name] = value
    rows_are = "vectors"
    if "relative" in fields and "relative" in model.model_fields:
        if fields["relative"] not in ("true", "false"):
            raise InvalidRequest(
                "In a query string, `relative` must be true or false: it says whether the rows "
                "of the body are relative vectors.",
                field="relative",
            )
        rows_are = "relative" if fields.pop("relative") == "true" else "vectors"
    return {**fields, rows_are: rows}


def parameters(model: type[BaseModel]) -> list[dict[str, Any]]:
    """Returns OpenAPI's parameters for the fields that the query string may hold."""
    fields = model.model_json_schema()["properties"]
    plain = {name: each for name, each in fields.items() if name not in TABLES}
    plain |= _option_schemas(model)
    if "relative" in fields:
        plain["relative"] = {
            "type": "boolean",
            "description": "npy: the rows of the body are relative vectors.",
        }
    return [_parameter(name, each) for name, each in plain.items()]


def _parameter(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    hidden = ("title", "examples", "description")
    plain = {key: value for key, value in schema.items() if key not in hidden}
    described = {"description": schema["description"]} if "description" in schema else {}
    return {"name": name, "in": "query", **described, "schema": plain}


@cache
def _option_schemas(model: type[BaseModel]) -> dict[str, dict[str, Any]]:
    """Returns the options of the request's method."""
    if "options" not in model.model_fields:
        return {}
    [options] = models_in(model.model_fields["options"].annotation)
    schemas: dict[str, dict[str, Any]] = options.model_json_schema()["properties"]
    return schemas
