"""A job, as every route that starts or shows one answers it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from app.http.fields import RowModel
from app.types import JobState


class JobSummary(RowModel):
    """A job without its result, as lists show it."""

    id: str = Field(description="Id of the job: 32 hexadecimal digits.")
    kind: str = Field(description="What the job does, such as `bootstrap` or `translator`.")
    state: JobState = Field(description="Where the job is.")
    progress: dict[str, Any] = Field(
        description="Steps done (`done`) and in all (`total`), "
        "and what the kind of job adds, such as its loss."
    )
    attempts: int = Field(description="Attempts since the job last made new progress.")
    cancel_requested: bool = Field(description="Whether a client asked the job to stop.")
    error: dict[str, Any] | None = Field(
        description="Why the job failed: the members of a problem document, "
        "such as `code` and `detail`. Null unless it failed."
    )
    created_at: datetime = Field(description="When the job was created.")
    started_at: datetime | None = Field(description="When a worker last started it.")
    finished_at: datetime | None = Field(description="When it ended.")


class Job(JobSummary):
    """A job with its result."""

    result: dict[str, Any] | None = Field(
        description="The result. Its members depend on `kind`. Null until the job has succeeded."
    )
