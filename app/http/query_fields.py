"""Fields of a request in its query string, for bodies of npy."""

from __future__ import annotations

from functools import cache
from typing import Any

import orjson
from fastapi import Request
from pydantic import BaseModel

from app.errors import InvalidRequest
from app.http.fields import BODY_ROWS, Body


def read(request: Request, model: type[Body] | None) -> dict[str, Any]:
    """Returns the fields of the query string, with options by name.

    model  None: the route reads no parameters, and refuses each
    """
    if model is None:
        for name in request.query_params:
            raise InvalidRequest(
                f"This route reads no query parameters. Send `{name[:100]}` in the body.",
                field=name[:100],
            )
        return {}
    texts, options = _texts_and_options(model)
    fields: dict[str, Any] = {}
    seen: set[str] = set()
    for name, value in request.query_params.multi_items():
        if name in seen:
            raise InvalidRequest(
                f"The query string has `{name[:100]}` twice. Send it once.", field=name[:100]
            )
        seen.add(name)
        if options and name == "options":
            raise InvalidRequest(
                "In a query string, send each option as its own parameter, such as `delta=0.5`.",
                field=name,
            )
        if name == "relative" and "relative" in model.model_fields:
            if value not in ("true", "false"):
                raise InvalidRequest(
                    "In a query string, `relative` must be true or false: it says whether the rows "
                    "of the body are relative vectors.",
                    field=name,
                )
            if value == "true":
                fields[name] = BODY_ROWS
            continue
        place = fields.setdefault("options", {}) if name in options else fields
        place[name] = value if name in texts else _parse_value(value)
    return fields


def join(fields: Any, query: dict[str, Any], *, only_vectors: bool) -> Any:
    """Returns the fields of body and query string. Raises InvalidRequest for a field in both.

    only_vectors  the body is npy; with `relative=true` its rows are relative vectors
    """
    if only_vectors and query.get("relative") is BODY_ROWS:
        fields = {"relative": fields["vectors"]}
        query = {name: value for name, value in query.items() if name != "relative"}
    if not isinstance(fields, dict):
        return fields
    for name in query:
        if name in fields:
            raise InvalidRequest(
                f"`{name}` is in the body and in the query string. Send it once.", field=name
            )
    return {**fields, **query}


def parameters(model: type[BaseModel]) -> list[dict[str, Any]]:
    """Returns OpenAPI's parameters for the fields that the query string may hold."""
    _, options = _texts_and_options(model)
    schema = model.model_json_schema()
    tables = {
        "vectors",
        "relative",
        "inputs",
        "input_type",
        "options",
        "embeddings",
        "encoders",
        "roles",
    }
    plain = {name: each for name, each in schema["properties"].items() if name not in tables}
    if options:
        plain |= schema["$defs"]["TranslationOptions"]["properties"]
    if "relative" in schema["properties"]:
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


def _parse_value(text: str) -> Any:
    """Returns a number, a boolean or null; other text stays text, which the field then refuses."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return text if isinstance(value, dict | list | str) else value


@cache
def _texts_and_options(model: type[BaseModel]) -> tuple[frozenset[str], frozenset[str]]:
    """Returns the fields of a request that are texts, and the options of its method."""
    schema = model.model_json_schema()
    texts = {name for name, each in schema["properties"].items() if _is_text(each)}
    options = (
        set()
        if "options" not in schema["properties"]
        else set(schema["$defs"]["TranslationOptions"]["properties"])
    )
    return frozenset(texts), frozenset(options)


def _is_text(schema: dict[str, Any]) -> bool:
    return schema.get("type") == "string" or any(map(_is_text, schema.get("anyOf", [])))
