"""Errors to application/problem+json (RFC 9457), in one place. Routes raise; this file knows HTTP.

Under the paths of other services' protocols an error has their shape: `app.api.http.error_dialects`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any
from uuid import uuid4

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from app import errors
from app.api.http import error_dialects
from app.observability import metrics

log = logging.getLogger("anchorage")

MEDIA_TYPE = "application/problem+json"

#: the first class of an error's ancestry found here decides
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

#: what any route may answer before it looks at the request
ANYWHERE = (401, 403, 429, 503)

#: characters of a field's name that a problem shows: the name may be a client's, and as long as its body
PART_SHOWN = 100

#: pydantic's error types that have a code of their own here; every other one is invalid-request
CODES = {"extra_forbidden": "unknown-field", "missing": "missing-field"}


class FieldError(BaseModel):
    """One wrong field of a request."""

    field: str
    message: str


class Problem(BaseModel):
    """What went wrong (RFC 9457). `code` is stable; `detail` is for people."""

    type: str = Field(examples=["urn:anchorage:dimension-mismatch"])
    title: str
    status: int
    code: str
    detail: str
    instance: str
    field: str | None = None
    rows: list[int] | None = Field(None, description="The first 20 rows at fault, counted from 0.")
    row_count: int | None = Field(None, description="How many rows are at fault.")
    limit: int | None = None
    found: dict[str, Any] | None = Field(
        None, description="What a translator promises that promises too little."
    )
    items: int | None = Field(
        None, description="How many items a pool has: where its next piece begins."
    )
    retry_after: int | None = Field(
        None, description="Seconds after which the same request may succeed, as in Retry-After."
    )
    request_id: str | None = Field(
        None, description="Also in X-Request-ID, and in the service's log."
    )
    errors: list[FieldError] | None = None


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI's `responses` for routes that may answer these statuses with a problem."""
    return _responses(statuses, {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}})


def spoken(dialect: type[BaseModel], *statuses: int) -> dict[int | str, dict[str, Any]]:
    """The same, for routes whose errors have another protocol's shape."""
    return {
        status: {**response, "model": dialect}
        for status, response in _responses(statuses, None).items()
    }


def _responses(statuses: Sequence[int], content: Any) -> dict[int | str, dict[str, Any]]:
    slow = (
        [HTTPStatus.REQUEST_TIMEOUT.value]
        if HTTPStatus.REQUEST_ENTITY_TOO_LARGE in statuses
        else []
    )
    every = (*statuses, *slow, *ANYWHERE)
    described = {status: {"description": HTTPStatus(status).phrase} for status in every}
    return {
        status: {**each, **({} if content is None else {"content": content})}
        for status, each in described.items()
    }


def install(app: FastAPI) -> None:
    """Every error, also those of the framework, leaves as a problem document."""
    app.add_exception_handler(errors.AnchorageError, anchorage_error)
    app.add_exception_handler(RequestValidationError, validation_error)
    app.add_exception_handler(HTTPException, _http_error)


def status_of(error: errors.AnchorageError) -> HTTPStatus:
    for cls in type(error).__mro__:
        if cls in STATUS:
            return STATUS[cls]
    return HTTPStatus.INTERNAL_SERVER_ERROR


def problem(request: Request, status: HTTPStatus, code: str, detail: str, **more: Any) -> Response:
    """The response; members without a value are left out."""
    body = {
        "type": f"urn:anchorage:{code}",
        "title": status.phrase,
        "status": status.value,
        "code": code,
        "detail": detail,
        "instance": request.url.path,
        "request_id": getattr(request.state, "request_id", None),
        **{name: value for name, value in more.items() if value is not None},
    }
    response = error_dialects.speak(request.url.path, body) or Response(
        orjson.dumps(body), status_code=status, media_type=MEDIA_TYPE
    )
    if "retry_after" in body:
        response.headers["Retry-After"] = str(body["retry_after"])
    if status == HTTPStatus.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def respond(request: Request, error: errors.AnchorageError) -> Response:
    """The problem document of an error, counted."""
    metrics.REFUSED.labels(error.code).inc()
    return problem(
        request,
        status_of(error),
        error.code,
        error.detail,
        **error.members(),
        retry_after=error.retry_after_s,
    )


async def anchorage_error(request: Request, error: Exception) -> Response:
    """The answer to an error of ours."""
    assert isinstance(error, errors.AnchorageError)
    if isinstance(error, errors.EncoderUnavailable) and error.__cause__ is not None:
        log.warning("%s: %s", error.code, error.detail, exc_info=error.__cause__)
    if isinstance(error, errors.Unavailable):
        log.warning("%s: %s", error.code, error.detail, exc_info=error.__cause__)
    return respond(request, error)


async def validation_error(request: Request, error: Exception) -> Response:
    """The answer to a body whose fields are wrong."""
    assert isinstance(error, RequestValidationError)
    found = [
        FieldError(field=_dotted(item["loc"]), message=item["msg"])
        for item in error.errors()[: errors.ROWS_SHOWN]
    ]
    code = CODES.get(error.errors()[0]["type"], "invalid-request")
    detail = "; ".join(f"{item.field}: {item.message}" for item in found[:5])
    return problem(
        request,
        HTTPStatus.UNPROCESSABLE_ENTITY,
        code,
        detail,
        field=found[0].field,
        errors=[item.model_dump() for item in found[: errors.ROWS_SHOWN]],
    )


def _dotted(location: tuple[int | str, ...]) -> str:
    """('body', 'options', 'delta') -> 'options.delta'; a part that a client made long is cut."""
    return ".".join(str(part)[:PART_SHOWN] for part in location[1:]) or str(location[0])


async def _http_error(request: Request, error: Exception) -> Response:
    """An unknown path or verb: the framework raises this for nothing else here."""
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    detail = f"{request.method} {request.url.path} is no call of this service: /docs lists them all"
    response = problem(request, status, status.phrase.lower().replace(" ", "-"), detail)
    response.headers.update(error.headers or {})
    return response


def internal(request: Request, error: Exception) -> Response:
    """A fault of ours: the client gets an id that the log has too, and nothing of the inside."""
    incident = getattr(request.state, "request_id", None) or uuid4().hex
    log.error("incident %s at %s %s", incident, request.method, request.url.path, exc_info=error)
    detail = f"the service failed; its log has the reason under {incident}"
    return problem(request, HTTPStatus.INTERNAL_SERVER_ERROR, "internal", detail)
