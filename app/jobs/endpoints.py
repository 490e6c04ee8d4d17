"""/jobs: work that takes longer than a request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.sse import EventSourceResponse, format_sse_event
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from app.access.service import KEY_TRUST_S
from app.context import Services
from app.db import tables
from app.errors import AnchorageError
from app.http.deps import Limit, Moment, Reads, Svc, WriteContext
from app.http.problems import documented
from app.jobs import queries as job_queries
from app.jobs import submission
from app.jobs.schemas import Job, JobSummary
from app.types import JobState

#: Seconds between two looks at a job's row, and between two comments on a silent stream.
EVENT_POLL_S = 0.5
HEARTBEAT_S = 15.0

router = APIRouter(prefix="/jobs", tags=["Jobs"])

JobId = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$", description="Id of the job.")]


class JobPage(BaseModel):
    """Jobs without their results, newest first."""

    jobs: list[JobSummary] = Field(description="One page of jobs.")


@router.get("", summary="List jobs", responses=documented(422))
def list_jobs(
    services: Svc,
    project: Reads,
    state: Annotated[JobState | None, Query(description="Only jobs in this state.")] = None,
    before: Annotated[
        Moment | None,
        Query(
            description="Only jobs from before this moment: "
            "`created_at` of the previous page's last one."
        ),
    ] = None,
    limit: Limit = 100,
) -> JobPage:
    """Returns the project's jobs without their results, newest first."""
    with services.db.transaction() as session:
        rows = job_queries.jobs(session, project, state=state, before=before, limit=limit)
    return JobPage(jobs=[JobSummary.model_validate(row) for row in rows])


@router.get("/{id}", summary="Get a job", responses=documented(404, 422))
def get_job(id: JobId, services: Svc, project: Reads) -> Job:
    """Returns a job with its progress and, once it has succeeded, its result."""
    return Job.model_validate(_find_job(services, project, id))


@router.post(
    "/{id}/cancel", status_code=202, summary="Cancel a job", responses=documented(404, 409, 422)
)
def cancel_job(id: JobId, services: Svc, context: WriteContext) -> Job:
    """Asks a job to stop. A running job stops at its next step."""
    return Job.model_validate(submission.cancel_job(services, context, id))


@router.get(
    "/{id}/events",
    summary="Stream a job's progress",
    responses={
        200: {
            "content": {"text/event-stream": {}},
            "description": "Events named `progress`, then one named `end`. "
            "Each holds the whole job.",
        },
        **documented(404, 422),
    },
    response_class=Response,
)
async def job_events(
    id: JobId,
    request: Request,
    services: Svc,
    project: Reads,
) -> Response:
    """Sends the job as it is, and after each change, as server-sent events."""
    row = await run_in_threadpool(_find_job, services, project, id)
    events = _events(request, services, project, row)
    return EventSourceResponse(
        events, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    )


def _find_job(services: Services, project: str, job_id: str) -> tables.JobRow:
    with services.db.transaction() as session:
        return job_queries.job(session, project, job_id)


async def _events(
    request: Request, services: Services, project: str, row: tables.JobRow
) -> AsyncIterator[bytes]:
    """An event for each change of the job's row, until the job ends or the server stops.

    An error ends the stream. The client is expected to reconnect.
    """
    admission = request.app.state.admission
    key_id, key_ring = request.state.context.key_id, request.app.state.keys
    last_sent = last_checked = time.monotonic()
    seen = None
    while not admission.stopping:
        if row.version != seen:
            seen = row.version
            ended = JobState(row.state).finished
            yield format_sse_event(
                data_str=Job.model_validate(row).model_dump_json(),
                event="end" if ended else "progress",
                id=str(seen),
                retry=2000,
            )
            if ended:
                return
            last_sent = time.monotonic()
        elif time.monotonic() - last_sent > HEARTBEAT_S:
            yield format_sse_event(comment="heartbeat")
            last_sent = time.monotonic()
        await asyncio.sleep(EVENT_POLL_S)
        try:
            if key_ring is not None and time.monotonic() - last_checked > KEY_TRUST_S:
                if not await run_in_threadpool(key_ring.works, key_id):
                    return
                last_checked = time.monotonic()
            row = await run_in_threadpool(_find_job, services, project, row.id)
        except AnchorageError:
            return
