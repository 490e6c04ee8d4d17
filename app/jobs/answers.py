"""What routes declare and answer when a job does their work."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Header, Request, Response

from app.db import tables
from app.errors import FitQueued
from app.http import media_types, problems
from app.jobs.schemas import Job

#: the 202 of a route's `responses`
ASYNC: dict[str, Any] = {
    "model": Job,
    "description": "The job that does the work; with `Prefer: respond-async`.",
}
#: the 202 of a route that may need a long fit
FIT_QUEUED: dict[str, Any] = {
    "model": Job,
    "description": "The job that makes the fit which the request needs. Repeat the request when "
    "it has ended.",
}
Prefer = Annotated[
    str | None,
    Header(description="`respond-async` leaves the work to a job (RFC 7240)."),
]


def wants_job(prefer: str | None) -> bool:
    """Whether the client sent `Prefer: respond-async`."""
    return prefer is not None and "respond-async" in {
        item.partition(";")[0].strip().lower() for item in prefer.split(",")
    }


def accepted(response: Response, row: tables.JobRow, *, preferred: bool = True) -> Job:
    """Returns the job as a 202 answer. `preferred`: whether the client sent `Prefer`."""
    response.status_code = 202
    response.headers["Location"] = f"/jobs/{row.id}"
    if preferred:
        response.headers["Preference-Applied"] = "respond-async"
    return Job.model_validate(row)


async def fit_queued(request: Request, error: Exception) -> Response:
    """Returns the job as 202; for a page, and for clients of OpenAI, who know no job, a 503."""
    assert isinstance(error, FitQueued)
    response = problems.respond(request, error)
    if response.media_type == media_types.PROBLEM:
        response = Response(
            Job.model_validate(error.job).model_dump_json(), 202, media_type=media_types.JSON
        )
        response.headers["Retry-After"] = str(error.retry_after_s)
    response.headers["Location"] = f"/jobs/{error.job.id}"
    return response
