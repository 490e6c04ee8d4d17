"""/jobs: work that outlives a request."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field

from app.api.deps import Limit, Project, Svc
from app.api.problems import documented
from app.services import jobs
from app.storage import registry, tables
from app.types import JobState

router = APIRouter(prefix="/jobs", tags=["jobs"])

JobId = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$")]


class Job(BaseModel):
    """A job: where it is, and when it has ended, its result or its error."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    kind: str
    state: JobState
    progress: dict[str, Any] = Field(description="done and total steps, and what the job wishes to tell")
    attempts: int
    cancel_requested: bool
    result: dict[str, Any] | None
    error: dict[str, Any] | None = Field(description="code and detail of a failed job")
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class JobPage(BaseModel):
    """The newest jobs first."""

    jobs: list[Job]


def describe(row: tables.Job) -> Job:
    return Job.model_validate(row)


@router.get("", responses=documented(422))
def list_jobs(services: Svc, project: Project, state: JobState | None = None, limit: Limit = 100) -> JobPage:
    """The newest jobs first."""
    with services.db.transaction() as session:
        return JobPage(jobs=[describe(row) for row in registry.jobs(session, project, state=state, limit=limit)])


@router.get("/{id}", responses=documented(404, 422))
def get_job(id: JobId, services: Svc, project: Project) -> Job:
    """One job."""
    with services.db.transaction() as session:
        return describe(registry.job(session, project, id))


@router.post("/{id}/cancel", status_code=202, responses=documented(404, 409, 422))
def cancel_job(id: JobId, services: Svc, project: Project) -> Job:
    """Ask a job to stop; a running one does at its next step."""
    return describe(jobs.cancel(services, project, id))
