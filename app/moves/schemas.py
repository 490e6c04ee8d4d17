"""A migration, as every route that plans, moves or shows one answers it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from app.moves.records import MigrationStatus, NextCall
from app.types import JobState, MigrationState


class MigrationProgress(BaseModel, extra="allow"):
    """How far a migration is."""

    phase: str | None = Field(
        description="What the job does, such as `sweep`, `index` or `filled`. Null before a run."
    )
    rows: int = Field(description="Rows that have been read and translated.")
    total: int | None = Field(
        description="Rows of the store when the run began; more where clients added some."
    )
    rows_per_second: float | None = Field(
        description="Mean speed of the present attempt. Null unless rows are translated now."
    )
    eta_s: float | None = Field(
        description="Estimated seconds until every row has a new vector, without the index. Null "
        "unless rows are translated now."
    )


class MigrationJob(BaseModel):
    """The last job of a migration."""

    id: str = Field(description="Id of the job, for `GET /jobs/{id}`.")
    action: str = Field(description="What it does: `run`, `verify` or `sync`.")
    state: JobState = Field(description="Where the job is.")


class MigrationAnswer(BaseModel):
    """A migration with its plan, and the calls that are possible now."""

    id: str = Field(description="Id of the migration: 32 hexadecimal digits.")
    store: str = Field(description="Name of the store.")
    source: str = Field(description="Encoder whose vectors the store had when it was planned.")
    target: str = Field(description="Encoder to whose space the store moves.")
    anchor_set: str = Field(description="Anchor set that relates the two encoders.")
    state: MigrationState = Field(description="How far the migration is.")
    plan: dict[str, Any] = Field(description="What `run` obeys, and what the plan estimates.")
    progress: MigrationProgress = Field(description="How far the run is.")
    found: dict[str, Any] = Field(
        description="What was found: checksums before the run, `verify`, and the pauses of "
        "`cutover` and `rollback` in seconds (`pause_s`)."
    )
    error: dict[str, Any] | None = Field(
        description="The problem that stopped it, with `code` and `detail`. Null while it goes "
        "well."
    )
    job: MigrationJob | None = Field(description="Its last job. Null before the first.")
    next: list[NextCall] = Field(description="The calls that are possible now.")
    created_at: datetime = Field(description="When it was planned.")
    ended_at: datetime | None = Field(
        description="When it was finished or abandoned. Null while the store has traces of it."
    )

    @classmethod
    def of(cls, found: MigrationStatus) -> MigrationAnswer:
        """Returns the answer about a migration."""
        row, job = found.row, found.job
        action = "" if job is None else job.arguments.get("action", "")
        return cls(
            id=row.id,
            store=row.store.name,
            source=row.plan.get("source") or row.store.encoder.name,
            target=row.target.name,
            anchor_set=row.anchor_set.name,
            state=found.state,
            plan=row.plan,
            progress=MigrationProgress(**found.progress),
            found=row.found,
            error=found.error,
            job=job and MigrationJob(id=job.id, action=action, state=JobState(job.state)),
            next=list(found.next),
            created_at=row.created_at,
            ended_at=row.ended_at,
        )
