"""Gives errors the shapes of other protocols, below the paths of these protocols."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import Response
from pydantic import BaseModel, Field

#: what OpenAI's API answers in place of statuses that it does not use
_OPENAI_STATUS = {
    HTTPStatus.UNPROCESSABLE_ENTITY: HTTPStatus.BAD_REQUEST,
    HTTPStatus.CONFLICT: HTTPStatus.BAD_REQUEST,
}
#: codes of names that are part of a model's name
_MODELS = ("encoder-not-found", "anchor-set-not-found")
#: fields of the services, and OpenAI's fields that they come from
_OPENAI_FIELDS = {
    "inputs": "input",
    **dict.fromkeys(("encoder", "source", "target", "anchor_set"), "model"),
}
_OPENAI_TYPES = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
}


class OpenAIErrorBody(BaseModel):
    """What is wrong. `code` is stable."""

    message: str = Field(description="What is wrong and what to do next.")
    type: str = Field(description="The kind of error, in OpenAI's terms.")
    param: str | None = Field(description="The field at fault.")
    code: str | None = Field(description="The stable code.")
    rows: list[int] | None = Field(
        None, description="The first 20 inputs at fault, counted from 0; OpenAI's API lacks it."
    )


class OpenAIError(BaseModel):
    """An error in OpenAI's shape."""

    error: OpenAIErrorBody


class TeiError(BaseModel):
    """An error in the shape of text-embeddings-inference."""

    error: str = Field(description="What is wrong and what to do next.")
    error_type: str = Field(description="The stable code.")


class InferenceError(BaseModel):
    """An error in the shape of the Open Inference Protocol."""

    error: str = Field(description="The stable code, and what is wrong.")


def _openai(problem: Mapping[str, Any]) -> tuple[int, BaseModel]:
    status = HTTPStatus(problem["status"])
    kind = _OPENAI_TYPES.get(
        status,
        "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error",
    )
    unknown_model = problem["code"] in _MODELS or (
        status is HTTPStatus.NOT_FOUND and problem["instance"].startswith("/v1/models/")
    )
    code = "model_not_found" if unknown_model else problem["code"]
    field = problem.get("field")
    param = None if field is None else _OPENAI_FIELDS.get(field, field)
    body = OpenAIErrorBody(
        message=problem["detail"], type=kind, param=param, code=code, rows=problem.get("rows")
    )
    return _OPENAI_STATUS.get(status, status), OpenAIError(error=body)


def _tei(problem: Mapping[str, Any]) -> tuple[int, BaseModel]:
    return problem["status"], TeiError(error=problem["detail"], error_type=problem["code"])


def _inference(problem: Mapping[str, Any]) -> tuple[int, BaseModel]:
    return problem["status"], InferenceError(error=f"{problem['code']}: {problem['detail']}")


_DIALECTS: dict[str, Callable[[Mapping[str, Any]], tuple[int, BaseModel]]] = {
    "/v1": _openai,
    "/tei": _tei,
    "/v2": _inference,
}


def respond(path: str, problem: Mapping[str, Any]) -> Response | None:
    """Returns the error in the shape of the path's protocol; None below Anchorage's own paths."""
    for prefix, dialect in _DIALECTS.items():
        if path == prefix or path.startswith(prefix + "/"):
            status, body = dialect(problem)
            return Response(
                orjson.dumps(body.model_dump()), status_code=status, media_type="application/json"
            )
    return None
