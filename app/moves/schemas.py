"""A wanted migration, and one as every route that plans, moves or shows it answers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from app.http.fields import Body, Name
from app.moves.service import Fill, MigrationStatus, NextCall
from app.translate.fields import Finite, FitFields, Share
from app.types import JobState, MigrationState

Positive = Annotated[Finite, Field(gt=0, le=1e9)]


class MigrationLimits(Body):
    """What a run keeps to. They can be changed while the migration is planned or paused."""

    price_per_million_tokens: Annotated[Finite, Field(ge=0, le=1e9)] | None = Field(
        None, description="Price of embedding a million tokens by the target. Null: not known."
    )
    max_price: Annotated[Finite, Field(ge=0, le=1e12)] | None = Field(
        None,
        description="The run pauses before it spends more, in the unit of "
        "`price_per_million_tokens`, which it needs. Null: no limit.",
    )
    texts_per_minute: Positive | None = Field(
        None, description="Most texts that a run embeds in a minute. Null: no limit."
    )
    rows_per_second: Positive | None = Field(
        None, description="Most rows that a run writes in a second. Null: no limit."
    )
    concurrency: Annotated[int, Field(ge=1, le=64)] = Field(
        4, description="Requests at once to a remote target, 1 to 64."
    )


class NewMigration(MigrationLimits, FitFields):
    """A store, the encoder to move it to, and how its rows get new vectors."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"store": "articles", "target": "new"}]}
    )

    store: Name = Field(description="Name of the store.")
    target: Name = Field(description="Encoder to move the store to.")
    fill: Fill | None = Field(
        None,
        description="`embed`: every row gets the target's own vector of its text. A row without "
        "one is translated. `translate`: every row is translated. Null: `embed` where the store "
        "has a `text_field` and the service runs the target, else `translate`.",
    )
    anchor_set: Name | None = Field(
        None,
        description="Anchor set that the store's encoder and `target` share. `translate` needs "
        "one; `embed` makes one of the first 1,000 rows where none is named.",
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
    batch: Annotated[int, Field(ge=1, le=10_000)] = Field(
        4_000, description="Rows that are read and not yet written, 1 to 10,000."
    )


class Cutover(Body):
    """What a cutover may pass over."""

    force: bool = Field(
        False,
        description="Cut over although a trigger of the table names vectors of the old size: the "
        "writes that fire it fail until you change it.",
    )


class MigrationProgress(BaseModel, extra="allow"):
    """How far a migration is."""

    phase: str | None = Field(
        description="What the job does: `prepare`, `anchors`, `sweep`, `waiting` for the encoder, "
        "`changes` that clients wrote meanwhile, `index`, `filled`, or a step of a verification. "
        "`settling`: for some seconds after a cutover or a rollback, rows that clients wrote "
        "around it get their final vectors. Null before a run."
    )
    waiting: dict[str, Any] | None = Field(
        None,
        description="While the encoder is away: `detail` says what failed, `again_s` in how many "
        "seconds it is asked again, and `pauses_s` after how many the run pauses at the latest.",
    )
    rows: int = Field(
        description="Rows that have been read, and have a new vector if possible; before "
        "the run ends also those whose text is embedded, and which are written later."
    )
    total: int | None = Field(
        description="Rows of the store when the run began; more where clients added some."
    )
    rows_per_second: float | None = Field(
        description="Mean speed of the present attempt. Null unless rows get vectors now."
    )
    eta_s: float | None = Field(
        description="Estimated seconds until every row has a new vector, without the index. Null "
        "unless rows get vectors now."
    )
    encoded: int = Field(description="Rows with the target's own vector of their text.")
    skipped: int = Field(description="Rows without a new vector.")
    applied: int = Field(description="Writes of clients that reached the other vectors.")
    tokens: int = Field(description="Tokens that were embedded.")
    truncated: int = Field(description="Texts that the target read only in part.")
    spent: float | None = Field(
        description="Price of the tokens, also of those of each `verify`. Null without a price."
    )
    price_of_all: float | None = Field(
        description="What is spent and, by the plan, what the rest costs, rounded up to two "
        "digits. Null without a price."
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
    fill: Fill = Field(description="How rows get new vectors.")
    anchor_set: str | None = Field(
        description="Anchor set that relates the two encoders. Null before a run has made it."
    )
    state: MigrationState = Field(description="How far the migration is.")
    plan: dict[str, Any] = Field(description="What `run` obeys, and what the plan estimates.")
    progress: MigrationProgress = Field(description="How far the run is.")
    found: dict[str, Any] = Field(
        description="What was found: rows before the run, ids of the first 20 rows that were "
        "`skipped`, and of those whose text the encoder `refused`, `verify`, and the pauses of "
        "`cutover` and `rollback` in seconds (`pause_s`)."
    )
    error: dict[str, Any] | None = Field(
        description="The problem that stopped it, with `code` and `detail`. Null while it goes "
        "well."
    )
    job: MigrationJob | None = Field(description="Its last job. Null before the first.")
    interrupted: bool = Field(description="A step was interrupted: call the only `next`.")
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
            fill=row.plan["fill"],
            anchor_set=row.anchor_set and row.anchor_set.name,
            state=found.state,
            plan=row.plan,
            progress=MigrationProgress(**found.progress),
            found=row.found,
            error=found.error,
            job=job and MigrationJob(id=job.id, action=action, state=JobState(job.state)),
            interrupted=found.is_interrupted,
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
