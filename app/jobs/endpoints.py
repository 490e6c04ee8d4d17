"""/jobs: work that takes longer than a request."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from app.http.deps import Limit, Moment, Reads, Svc, WriteContext
from app.http.problems import documented
from app.jobs import queries as job_queries
from app.jobs import submission
from app.jobs.schemas import Job, JobSummary
from app.types import JobState

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
    with services.db.transaction() as session:
        return Job.model_validate(job_queries.job(session, project, id))


@router.post(
    "/{id}/cancel", status_code=202, summary="Cancel a job", responses=documented(404, 409, 422)
)
def cancel_job(id: JobId, services: Svc, context: WriteContext) -> Job:
    """Asks a job to stop. A running job stops at its next step."""
    return Job.model_validate(submission.cancel_job(services, context, id))
