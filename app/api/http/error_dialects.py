"""Errors in the shapes of other services' protocols, by the path under which they are spoken."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import Response
from pydantic import BaseModel, Field

#: statuses that OpenAI's API does not use, and what it would answer
_OPENAI_STATUS = {
    HTTPStatus.UNPROCESSABLE_ENTITY: HTTPStatus.BAD_REQUEST,
    HTTPStatus.CONFLICT: HTTPStatus.BAD_REQUEST,
}
#: what a model's name may name
_MODELS = ("encoder-not-found", "anchor-set-not-found")
_OPENAI_TYPES = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
}


class OpenAIErrorBody(BaseModel):
    """What went wrong; `code` is stable."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(BaseModel):
    """OpenAI's shape of an error."""

    error: OpenAIErrorBody


class TeiError(BaseModel):
    """The shape of an error of text-embeddings-inference."""

    error: str
    error_type: str = Field(description="a stable code")


class InferenceError(BaseModel):
    """The Open Inference Protocol's shape of an error."""

    error: str


def _openai(problem: Mapping[str, Any]) -> tuple[int, BaseModel]:
    status = HTTPStatus(problem["status"])
    kind = _OPENAI_TYPES.get(
        status,
        "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error",
    )
    asks_model = problem["code"] in _MODELS or (
        status is HTTPStatus.NOT_FOUND and problem["instance"].startswith("/v1/models/")
    )
    code = "model_not_found" if asks_model else problem["code"]
    body = OpenAIErrorBody(
        message=problem["detail"], type=kind, param=problem.get("field"), code=code
    )
    return _OPENAI_STATUS.get(status, status), OpenAIError(error=body)


def _tei(problem: Mapping[str, Any]) -> tuple[int, BaseModel]:
    return problem["status"], TeiError(error=problem["detail"], error_type=problem["code"])


def _inference(problem: Mapping[str, Any]) -> tuple[int, BaseModel]:
    return problem["status"], InferenceError(error=f"{problem['code']}: {problem['detail']}")


_SPEAKERS: dict[str, Callable[[Mapping[str, Any]], tuple[int, BaseModel]]] = {
    "/v1": _openai,
    "/tei": _tei,
    "/v2": _inference,
}


def speak(path: str, problem: Mapping[str, Any]) -> Response | None:
    """The error as the path's protocol has it; None under paths of our own."""
    for prefix, speaker in _SPEAKERS.items():
        if path == prefix or path.startswith(prefix + "/"):
            status, body = speaker(problem)
            return Response(
                orjson.dumps(body.model_dump()), status_code=status, media_type="application/json"
            )
    return None
