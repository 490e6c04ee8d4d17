"""/jobs: work that outlives a request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.sse import EventSourceResponse, format_sse_event
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from app.api.http.deps import Limit, Moment, Reads, Svc, WriteContext
from app.api.http.problems import documented
from app.api.schemas.fields import OfRow
from app.errors import AnchorageError, Overloaded, TooMuchAtOnce
from app.services.access.api_keys import KEY_TRUST_S
from app.services.context import Services
from app.services.jobs import submission
from app.storage import tables
from app.storage.queries import resources
from app.types import JobState

#: how often a stream looks for news, and how often it says that it is still there
LOOK_S = 0.5
STILL_THERE_S = 15.0

#: streams of one process at once; each asks the database twice a second
STREAMS = 100

router = APIRouter(prefix="/jobs", tags=["jobs"])

JobId = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$")]


class JobSummary(OfRow):
    """A job as a list shows it: where it is, and how it ended."""

    id: str
    kind: str
    state: JobState
    progress: dict[str, Any] = Field(
        description="done and total steps, and what the job wishes to tell, such as its loss"
    )
    attempts: int = Field(description="tries since the job got further than ever")
    cancel_requested: bool
    error: dict[str, Any] | None = Field(
        description="code and detail of a failed job, and other members of a problem document"
    )
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class Job(JobSummary):
    """A job with its result."""

    result: dict[str, Any] | None


class JobPage(BaseModel):
    """The newest jobs first, without their results."""

    jobs: list[JobSummary]


#: of a route that may leave its work to a job
ASYNC: dict[str, Any] = {
    "model": Job,
    "description": "with `Prefer: respond-async`: the job that does it",
}
Prefer = Annotated[str | None, Header(description="respond-async: a worker does it (RFC 7240)")]


def wants_job(prefer: str | None) -> bool:
    return prefer is not None and "respond-async" in {
        item.partition(";")[0].strip().lower() for item in prefer.split(",")
    }


def accepted(response: Response, row: tables.JobRow, *, preferred: bool = True) -> Job:
    """The answer of a request whose work a job does; `preferred`: because the client wanted it so."""
    response.status_code = 202
    response.headers["Location"] = f"/jobs/{row.id}"
    if preferred:
        response.headers["Preference-Applied"] = "respond-async"
    return Job.model_validate(row)


@router.get("", responses=documented(422))
def list_jobs(
    services: Svc,
    project: Reads,
    state: JobState | None = None,
    before: Annotated[
        Moment | None,
        Query(description="Only jobs made before this moment; the last one's of the page before."),
    ] = None,
    limit: Limit = 100,
) -> JobPage:
    """The newest jobs first, without their results."""
    with services.db.transaction() as session:
        rows = resources.jobs(session, project, state=state, before=before, limit=limit)
    return JobPage(jobs=[JobSummary.model_validate(row) for row in rows])


@router.get("/{id}", responses=documented(404, 422))
def get_job(id: JobId, services: Svc, project: Reads) -> Job:
    """One job."""
    return Job.model_validate(_look(services, project, id))


@router.post("/{id}/cancel", status_code=202, responses=documented(404, 409, 422))
def cancel_job(id: JobId, services: Svc, context: WriteContext) -> Job:
    """Ask a job to stop; a running one does at its next step."""
    return Job.model_validate(submission.cancel_job(services, context, id))


@router.get(
    "/{id}/events",
    responses={
        200: {
            "content": {"text/event-stream": {}},
            "description": "events `progress`, then one `end`, each with the whole job",
        },
        204: {
            "description": "the job has ended, and the client has seen it: it need not come back"
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
    last_event_id: Annotated[
        int | None, Header(ge=0, le=2**31 - 1, description="Only what came after this event.")
    ] = None,
) -> Response:
    """Server-sent events of a job's progress. A client that lost its connection goes on where it was, by Last-Event-ID."""
    seen = -1 if last_event_id is None else last_event_id
    row = await run_in_threadpool(_look, services, project, id)
    if JobState(row.state).finished and row.version == seen:
        return Response(status_code=204)
    state = request.app.state
    if state.streams[project] >= STREAMS // 2 and state.admission.keys is not None:
        raise TooMuchAtOnce(
            "this project has as many streams as one project may",
            retry_after_s=5,
            limit=STREAMS // 2,
        )
    if state.streams.total() >= STREAMS:
        raise Overloaded(
            f"this process serves {STREAMS} streams, which is what it can",
            retry_after_s=5,
            limit=STREAMS,
        )
    events = _events(request, services, project, row, seen)
    return EventSourceResponse(
        events, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    )


def _look(services: Services, project: str, job_id: str) -> tables.JobRow:
    with services.db.transaction() as session:
        return resources.job(session, project, job_id)


async def _events(
    request: Request, services: Services, project: str, row: tables.JobRow, seen: int
) -> AsyncIterator[bytes]:
    """Each change of the job's row once, until it ends or the server stops. A fault ends the stream; the client comes back."""
    state = request.app.state
    key_id, ring = request.state.caller.key_id, state.admission.keys
    state.streams[project] += 1
    try:
        spoke = asked = time.monotonic()
        while not state.admission.stopping:
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
                spoke = time.monotonic()
            elif time.monotonic() - spoke > STILL_THERE_S:
                yield format_sse_event(comment="still there")
                spoke = time.monotonic()
            await asyncio.sleep(LOOK_S)
            try:
                if ring is not None and time.monotonic() - asked > KEY_TRUST_S:
                    if not await run_in_threadpool(ring.works, key_id):
                        return
                    asked = time.monotonic()
                row = await run_in_threadpool(_look, services, project, row.id)
            except AnchorageError:
                return
    finally:
        state.streams[project] -= 1
