"""Fields of a request in its query string: bodies of npy and Arrow have no other place for them."""

from __future__ import annotations

from functools import cache
from typing import Any

import orjson
from fastapi import Request

from app.api.codecs import arrow
from app.api.schemas.fields import BODY_ROWS, Body
from app.errors import InvalidRequest

#: parameters that say how the body is read, and are no fields
OF_THE_BODY = frozenset({"column", "stream"})


def wants_stream(request: Request) -> bool:
    """Whether the request asks to be answered while its body arrives. Raises InvalidRequest."""
    if not request.scope["query_string"]:
        return False
    value = request.query_params.get("stream", "false")
    if value not in ("true", "false"):
        raise InvalidRequest("`stream` must be true or false", field="stream")
    return value == "true"


def column(request: Request) -> str | None:
    """The name of the Arrow column that holds the vectors, if the request names it."""
    return request.query_params.get("column") if request.scope["query_string"] else None


def none(request: Request) -> dict[str, Any]:
    """No fields: the route reads them from the body alone. Raises InvalidRequest for any other parameter than Arrow's column."""
    if not request.scope["query_string"]:
        return {}
    _refuse_column(request)
    for name in request.query_params:
        if name != "column":
            raise InvalidRequest(
                f"put `{name[:100]}` into the body: this call reads no fields from the query string",
                field=name[:100],
            )
    return {}


def read(request: Request, model: type[Body], *, streams: bool) -> dict[str, Any]:
    """Fields of the query string; a method's options have no prefix there. Raises InvalidRequest."""
    if not request.scope["query_string"]:
        return {}
    _refuse_column(request)
    if wants_stream(request) and not streams:
        raise InvalidRequest("`stream` only applies to /translate and /relative", field="stream")
    texts, options = _kinds(model)
    fields: dict[str, Any] = {}
    seen: set[str] = set()
    for name, value in request.query_params.multi_items():
        if name in seen:
            raise InvalidRequest(f"the query string has `{name[:100]}` twice", field=name[:100])
        seen.add(name)
        if name in OF_THE_BODY:
            continue
        if options and name == "options":
            raise InvalidRequest(
                "a query string names each option by itself, such as delta=0.5", field=name
            )
        if name == "relative" and "relative" in model.model_fields:
            if value not in ("true", "false"):
                raise InvalidRequest(
                    "in a query string, `relative` is true or false: whether the body's rows are relative vectors",
                    field=name,
                )
            if value == "true":
                fields[name] = BODY_ROWS
            continue
        place = fields.setdefault("options", {}) if name in options else fields
        place[name] = value if name in texts else _literal(value)
    return fields


def joined(fields: Any, query: dict[str, Any], *, only_vectors: bool) -> Any:
    """The fields of a body and of its query string. Raises InvalidRequest for a field that is in both.

    only_vectors  the body was npy or Arrow: its rows are relative vectors where the query string says so
    """
    if only_vectors and query.get("relative") is BODY_ROWS:
        fields = {"relative": fields["vectors"]}
        query = {name: value for name, value in query.items() if name != "relative"}
    if not isinstance(fields, dict):
        return fields
    for name in query:
        if name in fields:
            raise InvalidRequest(
                f"`{name}` is in the body and in the query string: send it once", field=name
            )
    return {**fields, **query}


def parameters(model: type[Body], *, streams: bool) -> list[dict[str, Any]]:
    """What OpenAPI says of the fields that may come in the query string."""
    _, options = _kinds(model)
    schema = model.model_json_schema()
    tables = {
        "vectors",
        "relative",
        "inputs",
        "input_type",
        "native_vectors",
        "targets",
        "labels",
        "options",
    }
    plain = {name: each for name, each in schema["properties"].items() if name not in tables}
    if options:
        plain |= schema["$defs"]["TranslationOptions"]["properties"]
    if streams:
        plain["stream"] = {
            "type": "boolean",
            "description": "npy and Arrow: answer while the body arrives, whatever its length",
        }
    if "relative" in schema["properties"]:
        plain["relative"] = {
            "type": "boolean",
            "description": "npy and Arrow: the body's rows are relative vectors",
        }
    return [{"name": name, "in": "query", "schema": _inline(each)} for name, each in plain.items()]


def _refuse_column(request: Request) -> None:
    """Raises InvalidRequest where a column is named and the body is not Arrow."""
    if "column" in request.query_params and not request.headers.get(
        "content-type", ""
    ).strip().lower().startswith(arrow.MEDIA):
        raise InvalidRequest("`column` only applies to Arrow bodies", field="column")


def _inline(schema: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name not in ("title", "examples")}


def _literal(text: str) -> Any:
    """A number, true or false; anything else stays text, for the field to refuse."""
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
    options = (
        set()
        if "options" not in schema["properties"]
        else set(schema["$defs"]["TranslationOptions"]["properties"])
    )
    return frozenset(texts), frozenset(options)


def _is_text(schema: dict[str, Any]) -> bool:
    return schema.get("type") == "string" or any(map(_is_text, schema.get("anyOf", [])))
