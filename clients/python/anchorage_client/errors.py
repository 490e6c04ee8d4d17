"""Errors of the service, as classes; each carries the service's problem document."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

#: calls of the API that the service advises, and those of this client
CALLS = {
    r"POST /(encoders|stores|migrations|heads)(?![/\w-])": r"client.\1.create",
    r"POST /anchor-sets(?![/\w])": "client.anchor_sets.create",
    r"DELETE /(stores|encoders|heads)/([\w.-]*\w)": r'client.\1.delete("\2")',
    r"GET /(encoders|stores|migrations|jobs)(?![/\w])": r"client.\1.list",
    r"POST /migrations/(\w+)/(\w+)": r'client.migrations.get("\1").\2()',
    r"GET /jobs/(\w+)": r'client.jobs.get("\1")',
}


class AnchorageError(Exception):
    """The service refused a request.

    status       HTTP status; None if no answer arrived
    code         stable name of the error, which the service's page /docs/errors explains
    detail       what was wrong, the limit, and what to do next, in calls of this client
    field        the wrong field of the request, if the error is about one
    rows         the wrong rows of that field, from 0
    retry_after  seconds after which the service suggests another try
    problem      the whole problem document
    perhaps_done
                 whether an earlier try, whose answer was lost, may have been carried out
    """

    perhaps_done = False

    def __init__(self, status: int | None, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.problem = dict(problem)
        self.code: str = str(problem.get("code") or "unknown")
        self.detail: str = str(problem.get("detail") or problem.get("title") or "")
        for call, own in CALLS.items():
            self.detail = re.sub(call, own, self.detail)
        self.field: str | None = problem.get("field")
        rows = problem.get("rows")
        numbers = isinstance(rows, list) and all(isinstance(row, int) for row in rows)
        self.rows: list[int] | None = rows if numbers else None
        self.retry_after: float | None = problem.get("retry_after")
        where = "" if self.field is None else f" (field `{self.field}`)"
        super().__init__(f"{self.code}: {self.detail}{where}")


class InvalidRequestError(AnchorageError):
    """400, 413, 415 or 422: the request is wrong. `field` and `rows` say where."""


class AuthenticationError(AnchorageError):
    """401: the API key is missing or does not work."""


class PermissionDeniedError(AnchorageError):
    """403: the API key does not have the scope."""


class NotFoundError(AnchorageError):
    """404: there is no resource of this name or id."""


class ConflictError(AnchorageError):
    """409: the resource exists, is in use, or is not in the right state."""


class RateLimitError(AnchorageError):
    """429: this client sends too much, and the retries were not enough."""


class UnavailableError(AnchorageError):
    """5xx, or no connection: the service cannot answer now."""


class JobFailedError(AnchorageError):
    """A job ended without a result: it failed, or was cancelled."""


_BY_STATUS: dict[int, type[AnchorageError]] = {
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    429: RateLimitError,
}


def error_of(status: int, problem: Mapping[str, Any]) -> AnchorageError:
    """Return the error for a status and its problem document."""
    kind = _BY_STATUS.get(status)
    if kind is None:
        kind = UnavailableError if status >= 500 else InvalidRequestError
    return kind(status, problem)


def not_anchorage(detail: str, status: int | None = None) -> UnavailableError:
    """Return the error for an answer that the service does not give."""
    detail = f"{detail} Check the URL of the client: another program may answer there."
    return UnavailableError(status, {"code": "not-anchorage", "detail": detail})


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Raise UnavailableError where the parts of an answer are missing or have another type."""
    try:
        yield
    except (
        AttributeError,
        EOFError,
        LookupError,
        MemoryError,  # numpy takes the size of an array from the answer
        TypeError,
        ValueError,
    ) as error:
        raise not_anchorage(f"{what} has another form: {error!r:.100}.") from error


@contextmanager
def rows_from(first: int) -> Iterator[None]:
    """Let the rows of an error count from the first row of all, where a part began at `first`."""
    try:
        yield
    except AnchorageError as error:
        if error.rows:
            error.rows = [row + first for row in error.rows]
        raise
