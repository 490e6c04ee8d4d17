"""Turns errors into application/problem+json (RFC 9457), and below /v1 into OpenAI's shape."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any
from uuid import uuid4

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from app import errors
from app.http import media_types
from app.http.docs import ERRORS_PATH
from app.http.field_errors import CODES, field_of, sentence
from app.ops import metrics

log = logging.getLogger("anchorage")

#: the status of each family of errors; the nearest base class of an error decides
STATUS: dict[type[errors.AnchorageError], HTTPStatus] = {
    errors.Unauthenticated: HTTPStatus.UNAUTHORIZED,
    errors.Forbidden: HTTPStatus.FORBIDDEN,
    errors.NotFound: HTTPStatus.NOT_FOUND,
    errors.Conflict: HTTPStatus.CONFLICT,
    errors.TooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    errors.BodyTooSlow: HTTPStatus.REQUEST_TIMEOUT,
    errors.UnsupportedMedia: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    errors.NotAcceptable: HTTPStatus.NOT_ACCEPTABLE,
    errors.Malformed: HTTPStatus.BAD_REQUEST,
    errors.Invalid: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.TooManyRequests: HTTPStatus.TOO_MANY_REQUESTS,
    errors.Unavailable: HTTPStatus.SERVICE_UNAVAILABLE,
}

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

#: most wrong fields that `detail` names; `errors` lists more
FIELDS_IN_DETAIL = 5

#: what every route may answer before it reads the request
ANYWHERE = (401, 403, 429, 503)


#: `app.state.problem_page`: returns a problem as a page, or None for paths outside the console
ProblemPage = Callable[[Request, dict[str, Any]], Response | None]


class FieldError(BaseModel):
    """One wrong field of a request."""

    field: str = Field(description="The path of the field, such as `options.delta`.")
    message: str = Field(description="What is wrong with the field.")


class Problem(BaseModel):
    """What is wrong (RFC 9457). Programs read `code`, which is stable; people read `detail`."""

    type: str = Field(
        description="A link to the code's section in this server's page of errors.",
        examples=[f"{ERRORS_PATH}#dimension-mismatch"],
    )
    title: str = Field(description="The phrase of the status.")
    status: int = Field(description="The HTTP status.")
    code: str = Field(description="The stable code of the error, for programs.")
    detail: str = Field(description="What is wrong and what to do next, for people.")
    instance: str = Field(description="The path of the request.")
    field: str | None = Field(None, description="The field, header or parameter at fault.")
    rows: list[int] | None = Field(None, description="The first 20 rows at fault, counted from 0.")
    row_count: int | None = Field(None, description="How many rows are at fault.")
    limit: int | None = Field(None, description="The limit that the request exceeds.")
    found: dict[str, Any] | None = Field(
        None, description="What the translator estimates, if that is too little."
    )
    items: int | None = Field(
        None, description="The number of items in the pool. Its next piece begins there."
    )
    retry_after: int | None = Field(
        None, description="Seconds after which the same request may succeed, as in Retry-After."
    )
    request_id: str | None = Field(
        None, description="The request's id in X-Request-ID and in the server's log."
    )
    errors: list[FieldError] | None = Field(
        None, description="Every wrong field, if the body does not match the route's model."
    )


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


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Returns `responses` for a route that answers problems of these statuses."""
    reference = {"schema": {"$ref": "#/components/schemas/Problem"}}
    return _responses(statuses, {"content": {media_types.PROBLEM: reference}})


def documented_as_openai(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Returns the same for a route below /v1."""
    return _responses(statuses, {"model": OpenAIError})


def _responses(statuses: Sequence[int], form: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    slow = (408,) if 413 in statuses else ()
    every = (*statuses, *slow, *ANYWHERE)
    return {status: {"description": HTTPStatus(status).phrase, **form} for status in every}


def install(app: FastAPI) -> None:
    """Answer all errors with problem documents, those of the framework too."""
    app.add_exception_handler(errors.AnchorageError, anchorage_error)
    app.add_exception_handler(RequestValidationError, validation_error)
    app.add_exception_handler(HTTPException, _routing_error)


def status_of(error: errors.AnchorageError) -> HTTPStatus:
    for cls in type(error).__mro__:
        if cls in STATUS:
            return STATUS[cls]
    return HTTPStatus.INTERNAL_SERVER_ERROR


def problem(request: Request, status: HTTPStatus, code: str, detail: str, **more: Any) -> Response:
    """Returns the response, without the members that are None."""
    body = {
        "type": f"{request.scope.get('root_path', '')}{ERRORS_PATH}#{code}",
        "title": status.phrase,
        "status": status.value,
        "code": code,
        "detail": detail,
        "instance": request.url.path,
        "request_id": getattr(request.state, "request_id", None),
        **{name: value for name, value in more.items() if value is not None},
    }
    page: ProblemPage | None = getattr(request.app.state, "problem_page", None)
    response = None if page is None else page(request, body)
    if response is None and f"{request.url.path}/".startswith("/v1/"):
        response = _openai(body)
    if response is None:
        response = Response(orjson.dumps(body), status, media_type=media_types.PROBLEM)
    if "retry_after" in body:
        response.headers["Retry-After"] = str(body["retry_after"])
    if status == HTTPStatus.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _openai(problem: Mapping[str, Any]) -> Response:
    """Returns the error in OpenAI's shape."""
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
    content = orjson.dumps(OpenAIError(error=body).model_dump())
    return Response(content, _OPENAI_STATUS.get(status, status), media_type=media_types.JSON)


def respond(request: Request, error: errors.AnchorageError) -> Response:
    """Counts the error and returns its problem document."""
    metrics.REFUSALS.labels(error.code).inc()
    return problem(
        request,
        status_of(error),
        error.code,
        error.detail,
        **error.members(),
        retry_after=error.retry_after_s,
    )


async def anchorage_error(request: Request, error: Exception) -> Response:
    """Returns the answer to an AnchorageError that a route raised."""
    assert isinstance(error, errors.AnchorageError)
    if isinstance(error, errors.EncoderUnavailable) and error.__cause__ is not None:
        log.warning("%s: %s", error.code, error.detail, exc_info=error.__cause__)
    if isinstance(error, errors.Unavailable):
        log.warning("%s: %s", error.code, error.detail, exc_info=error.__cause__)
    return respond(request, error)


async def validation_error(request: Request, error: Exception) -> Response:
    """Returns the answer to a request with wrong fields."""
    assert isinstance(error, RequestValidationError)
    items = error.errors()
    found = [
        FieldError(field=field_of(item), message=sentence(item))
        for item in items[: errors.ROWS_SHOWN]
    ]
    return problem(
        request,
        HTTPStatus.UNPROCESSABLE_ENTITY,
        CODES.get(items[0]["type"], "invalid-request"),
        " ".join(item.message for item in found[:FIELDS_IN_DETAIL]),
        field=found[0].field,
        errors=[item.model_dump() for item in found],
    )


async def _routing_error(request: Request, error: Exception) -> Response:
    """Returns the answer to an unknown path or method, the framework's only HTTPExceptions here."""
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    path = request.url.path
    is_known = status == HTTPStatus.METHOD_NOT_ALLOWED
    what = f"does not accept {request.method}" if is_known else "does not exist"
    detail = f"The path {path} {what}. See /docs for all routes."
    response = problem(request, status, status.phrase.lower().replace(" ", "-"), detail)
    response.headers.update(error.headers or {})
    return response


def internal(request: Request, error: Exception) -> Response:
    """Logs a fault of the service and returns an answer that names only the log's id for it."""
    incident = getattr(request.state, "request_id", None) or uuid4().hex
    log.error("incident %s at %s %s", incident, request.method, request.url.path, exc_info=error)
    detail = f"The service failed. Its log has the cause under the request id {incident}."
    return problem(request, HTTPStatus.INTERNAL_SERVER_ERROR, "internal", detail)
