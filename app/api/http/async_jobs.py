"""`Prefer: respond-async` (RFC 7240): routes that can leave their work to a job."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Header, Response

from app.api.schemas.jobs import Job
from app.storage import tables

#: The 202 of a route's `responses`.
ASYNC: dict[str, Any] = {
    "model": Job,
    "description": "The job that does the work; with `Prefer: respond-async`.",
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
