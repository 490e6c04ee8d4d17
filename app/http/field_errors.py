"""Errors of single fields in plain English: pydantic's error types become sentences.

`located` adds what only the caller knows: where the fields stand, and which fields exist there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal, get_args

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from app.http.fields import NAME_PATTERN

#: characters of a field's name that an error shows: a client can send any name
NAME_SHOWN = 100

#: pydantic's error types that have their own code; every other one is invalid-request
CODES = {"extra_forbidden": "unknown-field", "missing": "missing-field"}

#: fields by what clients of other services call them
_SAID = {"table": "collection", "dimension": "dim", "price": "price_per_million_tokens"}
_SAID |= {"dimensions": "dim", "type": "kind"}
_SAID |= dict.fromkeys(("query", "queries", "text", "texts", "input"), "inputs")
_SAID |= dict.fromkeys(("endpoint", "base_url", "api_base"), "url")

#: pydantic's message for a field that the model does not have
_UNKNOWN_FIELD = "Extra inputs are not permitted"

Place = Literal["body", "query string"]

_KINDS: tuple[tuple[type, str], ...] = (
    (bool, "a boolean"),
    (int, "a number"),
    (float, "a decimal number"),
    (str, "a string"),
    (list, "a list"),
    (dict, "an object"),
)


def located(
    error: ValidationError,
    model: type[BaseModel],
    *,
    place: Place = "body",
    below: tuple[str, ...] = (),
) -> RequestValidationError:
    """Returns the error for FastAPI, with the fields that exist where one is unknown.

    place  where the client sent the fields
    below  the path of the model within the body
    """
    items = []
    for item in error.errors(include_url=False):
        loc, context = item["loc"], dict(item.get("ctx") or {})
        context["place"] = place
        if item["type"] == "extra_forbidden" and item["msg"] == _UNKNOWN_FIELD:
            context["fields"] = _fields_at(model, loc[:-1])
            if "options" in context["fields"]:
                context["options"] = _fields_at(model, (*loc[:-1], "options"))
        items.append({**item, "loc": ("body", *below, *loc), "ctx": context})
    return RequestValidationError(items)


def field_of(item: Mapping[str, Any]) -> str:
    """Returns the dotted name: ('body', 'options', 'delta') is `options.delta`."""
    location = item["loc"]
    return ".".join(str(part)[:NAME_SHOWN] for part in location[1:]) or str(location[0])


def sentence(item: Mapping[str, Any]) -> str:
    """Returns what is wrong with which field."""
    field, message = field_of(item), str(item["msg"]).removeprefix("Value error, ")
    write = _MESSAGES.get(item["type"])
    if item["type"] == "extra_forbidden" and message != _UNKNOWN_FIELD:
        write = None  # an error of the whole object
    if write is None:
        said = f"`{field}` is not valid: {message[:1].lower()}{message[1:]}"
        return f"{message if field == 'body' else said}."
    subject = "The body" if field == "body" else f"`{field}`"
    return f"{subject} {write({**(item.get('ctx') or {}), 'field': field}, item.get('input'))}."


def _unknown(context: Mapping[str, Any], _value: object) -> str:
    fields: Sequence[str] = context.get("fields") or ()
    if not fields:
        return "is not a field of this request. Remove it"
    names = ", ".join(f"`{name}`" for name in fields)
    name = context["field"].rpartition(".")[2]
    wanted = _SAID.get(name, name)
    inner = [f"options.{wanted}"] if wanted in context.get("options", ()) else []
    similar = [wanted] if wanted in fields else inner or get_close_matches(name, fields, 1)
    question = f" Did you mean `{similar[0]}`?" if similar else ""
    return f"is not a field of this request.{question} The fields here are {names}"


def _missing(context: Mapping[str, Any], _value: object) -> str:
    place = context.get("place")
    return "is missing" if place is None else f"is missing. Add it to the {place}"


def _length(unit: str) -> Callable[[Mapping[str, Any], object], str]:
    def write(context: Mapping[str, Any], value: object) -> str:
        size = context.get("actual_length")
        if size is None and isinstance(value, str | list | dict):
            size = len(value)
        bound = (
            f"at least {context['min_length']}"
            if "min_length" in context
            else f"at most {context['max_length']}"
        )
        noun = unit if bound.endswith(" 1") else f"{unit}s"
        return f"must have {bound} {noun}" + ("" if size is None else f", and has {size}")

    return write


def _expected(what: str) -> Callable[[Mapping[str, Any], object], str]:
    def write(context: Mapping[str, Any], value: object) -> str:
        # Every value of a query string is text: the error names no type.
        is_query = context.get("place") == "query string"
        return f"must be {what}" + ("" if is_query else f", not {_kind(value)}")

    return write


def _bound(word: str, key: str) -> Callable[[Mapping[str, Any], object], str]:
    return lambda context, _value: f"must be {word} {context[key]}"


def _pattern(context: Mapping[str, Any], _value: object) -> str:
    if context["pattern"] == NAME_PATTERN:
        return (
            "must be a name of 1 to 100 letters, digits, dots, hyphens and underscores, "
            "and begin with a letter or a digit"
        )
    if "[0-9a-f]{32}" in context["pattern"]:
        return "must be an id, not a name: list them, and take the `id` of one"
    return f"must match the pattern {context['pattern']}"


def _kind(value: object) -> str:
    """Returns what JSON calls the value's type."""
    return next((name for types, name in _KINDS if isinstance(value, types)), "null")


def _moment(_context: Mapping[str, Any], _value: object) -> str:
    return "must be a time such as 2030-01-01T00:00:00Z"


_whole = _expected("a whole number")
_number = _expected("a number")
_truth = _expected("true or false")
_object = _expected("an object")

_MESSAGES: dict[str, Callable[[Mapping[str, Any], object], str]] = {
    "extra_forbidden": _unknown,
    "missing": _missing,
    "string_type": _expected("a string"),
    "int_type": _whole,
    "int_parsing": lambda context, value: "must be a whole number",
    "int_from_float": _whole,
    "int_parsing_size": lambda context, value: "has too many digits",
    "float_type": _number,
    "float_parsing": lambda context, value: "must be a number",
    "finite_number": lambda context, value: "must be finite",
    "bool_type": _truth,
    "bool_parsing": lambda context, value: "must be true or false",
    "list_type": _expected("a list"),
    "dict_type": _object,
    "model_type": _object,
    "model_attributes_type": _object,
    "greater_than_equal": _bound("at least", "ge"),
    "greater_than": _bound("greater than", "gt"),
    "less_than_equal": _bound("at most", "le"),
    "less_than": _bound("less than", "lt"),
    "too_short": _length("item"),
    "too_long": _length("item"),
    "string_too_short": _length("character"),
    "string_too_long": _length("character"),
    "literal_error": _bound("one of", "expected"),
    "enum": _bound("one of", "expected"),
    "union_tag_invalid": lambda context, value: (
        f"must have a {context['discriminator'].replace(chr(39), '`')} "
        f"of {context['expected_tags']}"
    ),
    "union_tag_not_found": lambda context, value: (
        f"must have the field {context['discriminator'].replace(chr(39), '`')}"
    ),
    "string_pattern_mismatch": _pattern,
    "datetime_type": _moment,
    "datetime_parsing": _moment,
    "datetime_from_date_parsing": _moment,
    "timezone_aware": lambda context, value: (
        "must have an offset from UTC, as in 2030-01-01T00:00:00Z"
    ),
}


def _fields_at(model: type[BaseModel], path: Sequence[int | str]) -> list[str]:
    """Returns the fields of the object at a path; of several possible objects, those of all."""
    models = [model]
    for part in path:
        annotations = [
            each.model_fields[part].annotation for each in models if part in each.model_fields
        ]
        found = [deeper for each in annotations for deeper in models_in(each)]
        # A part that names no field is an index, a key, or the tag of a union.
        tagged = [each for each in models if part in _tags(each)]
        models = found or tagged or models
    return list(dict.fromkeys(name for each in models for name in each.model_fields))


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from models_in(part)


def _tags(model: type[BaseModel]) -> set[Any]:
    """Returns the values of a model's fields that hold one constant."""
    return {value for field in model.model_fields.values() for value in get_args(field.annotation)}
