"""A wanted migration, and one as every route that plans, moves or shows it answers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from app.http.fields import Body, Name
from app.moves.service import MigrationStatus, NextCall
from app.translate.fields import (
    NO_MINIMUM,
    NO_OPTIONS,
    Finite,
    MethodName,
    MinQuality,
    Share,
    TranslationOptions,
)
from app.types import JobState, MigrationState


def _none_or_all(value: float) -> float:
    if value not in (0, 1):
        raise PydanticCustomError("none_or_all", "Must be 0 or 1")
    return value


class NewMigration(Body):
    """A store, the encoder to move it to, and how the move is made."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"store": "articles", "target": "new", "anchor_set": "faq"}]
        }
    )

    store: Name = Field(description="Name of the store.")
    target: Name = Field(description="Encoder to move the store to.")
    anchor_set: Name = Field(description="Anchor set that the store's encoder and `target` share.")
    method: MethodName = "auto"
    options: TranslationOptions = Field(
        default_factory=lambda: NO_OPTIONS, description="Options of the method."
    )
    min_quality: MinQuality = Field(
        default_factory=lambda: NO_MINIMUM,
        description="Lowest estimate to accept, in an index of the store's size.",
    )
    force_space: bool = Field(
        False,
        description="Plan even where the store's vectors look like those of another encoder, or "
        "where the anchors of both encoders are not related. Such translations mean nothing.",
    )
    min_recall: Share = Field(
        0.95,
        description="Share of the results of an exact search that the new index must find, 0 to "
        "1, for `verify` to pass. One that finds as much as the old one, less .02, passes too.",
    )
    re_embed: Annotated[float, AfterValidator(_none_or_all)] = Field(
        0.0,
        description="0: rows are translated. 1: the target encoder encodes the text of each row, "
        "and translates those without one. It needs a store with a `text_field`.",
        json_schema_extra={"enum": [0, 1]},
    )
    rows_per_second: Annotated[Finite, Field(gt=0, le=1e9)] | None = Field(
        None, description="Most rows that a run translates in a second. Null: no limit."
    )
    batch: Annotated[int, Field(ge=1, le=10_000)] = Field(
        4_000, description="Rows that are read and written at a time, 1 to 10,000."
    )
    evaluation: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] | None = Field(
        None,
        description="Id of a finished job of `POST /evaluate` with judgements, for the advice.",
    )
    old_encoder_runs: bool | None = Field(
        None,
        description="Whether the old encoder still encodes queries. "
        "Null: yes if the service runs it, otherwise unknown.",
    )
    text_exists: bool | None = Field(
        None,
        description="Whether the items can be encoded again. "
        "Null: yes if rows of the store have a text in its `text_field`.",
    )


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


class MigrationList(BaseModel):
    """A page of migrations, the newest first."""

    migrations: list[MigrationAnswer] = Field(description="The migrations.")
    next_before: str | None = Field(
        description="`before` of the next page. Null: this is the last page."
    )
