"""/migrations: plans that move a store to another encoder, and the jobs and steps of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from app.context import Services
from app.http.bodies import body_docs, json_body, read_no_body
from app.http.deps import Limit, Moment, Reads, Svc, WriteContext
from app.http.fields import NAME_PATTERN, Body, Name
from app.http.problems import documented
from app.jobs.schemas import Job
from app.moves import plan, records, steps
from app.moves.plan_contents import (
    DEFAULT_BATCH,
    DEFAULT_MIN_RECALL,
    MigrationTask,
)
from app.moves.schemas import MigrationAnswer
from app.request_context import RequestContext
from app.translate.fields import (
    NO_MINIMUM,
    NO_OPTIONS,
    Finite,
    MethodName,
    MinQuality,
    Share,
    TranslationOptions,
)

router = APIRouter(prefix="/migrations", tags=["Migrate"])

MigrationId = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$", description="Id of the migration.")]


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
        DEFAULT_MIN_RECALL,
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
        DEFAULT_BATCH, description="Rows that are read and written at a time, 1 to 10,000."
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

    def task(self) -> MigrationTask:
        """The wanted migration."""
        same = {each.name for each in fields(MigrationTask)} & set(NewMigration.model_fields)
        same -= {"options", "min_quality"}
        return MigrationTask(
            **{name: getattr(self, name) for name in same},
            options=self.options.as_dict(),
            min_quality=self.min_quality.as_dict(),
        )


class MigrationList(BaseModel):
    """A page of migrations, the newest first."""

    migrations: list[MigrationAnswer] = Field(description="The migrations.")
    next_before: str | None = Field(
        description="`before` of the next page. Null: this is the last page."
    )


@router.post(
    "",
    status_code=201,
    summary="Plan a migration",
    responses=documented(400, 404, 409, 413, 415, 422),
    openapi_extra=body_docs(NewMigration),
)
def plan_migration(
    context: WriteContext,
    body: Annotated[NewMigration, json_body(NewMigration)],
    response: Response,
    services: Svc,
) -> MigrationAnswer:
    """Reads a store, checks it, and plans its move to another encoder. Writes nothing to the store.

    The plan says what the move is worth: keep, cascade, fuse, native, translate or re-embed, with
    quality, time, writes and disk.
    It is refused with `wrong-space` if the vectors look like those of another encoder.
    """
    row = plan.plan_migration(services, context, body.task())
    response.headers["Location"] = f"/migrations/{row.id}"
    return MigrationAnswer.of(records.find_migration(services, context.project, row.id))


@router.get("", summary="List migrations", responses=documented(422))
def list_migrations(
    services: Svc,
    project: Reads,
    store: Annotated[
        str | None, Query(pattern=NAME_PATTERN, description="Only those of this store.")
    ] = None,
    before: Annotated[
        Moment | None, Query(description="Only those that were planned before this moment.")
    ] = None,
    limit: Limit = 100,
) -> MigrationList:
    """Returns the project's migrations, the newest first."""
    found = records.list_migrations(services, project, store=store, before=before, limit=limit + 1)
    page = [MigrationAnswer.of(each) for each in found[:limit]]
    more = len(found) > limit
    return MigrationList(
        migrations=page, next_before=page[-1].created_at.isoformat() if more else None
    )


@router.get("/{id}", summary="Get a migration", responses=documented(404, 422))
def get_migration(id: MigrationId, services: Svc, project: Reads) -> MigrationAnswer:
    """Returns a migration: its plan, its progress, and the calls that are possible now."""
    return MigrationAnswer.of(records.find_migration(services, project, id))


NoBody = Annotated[None, Depends(read_no_body)]

#: what takes a step, and returns the migration after it
Step = Callable[[Services, RequestContext, str], records.MigrationStatus]

PROBLEMS = documented(400, 404, 409, 413, 422)


@router.post("/{id}/run", status_code=202, summary="Run a migration", responses=PROBLEMS)
def run_migration(
    id: MigrationId,
    context: WriteContext,
    _body: NoBody,
    response: Response,
    services: Svc,
) -> Job:
    """Queues the job that gives every row a new vector and keeps the old one.

    The job continues where an earlier one was paused or stopped. Clients of the store see no
    difference until `cutover`.
    """
    return _queue("run", id, context, response, services)


@router.post("/{id}/verify", status_code=202, summary="Verify a migration", responses=PROBLEMS)
def verify_migration(
    id: MigrationId,
    context: WriteContext,
    _body: NoBody,
    response: Response,
    services: Svc,
) -> Job:
    """Queues the job that checks a filled migration. `cutover` needs one that passed.

    It compares the numbers of rows, a checksum of everything that is not the vector, and the new
    vectors of sampled rows. It measures the recall of the index before and after, where the store
    has a cutover; elsewhere `finish` needs one that passed.
    """
    return _queue("verify", id, context, response, services)


@router.post("/{id}/sync", status_code=202, summary="Synchronise a store", responses=PROBLEMS)
def synchronise_store(
    id: MigrationId,
    context: WriteContext,
    _body: NoBody,
    response: Response,
    services: Svc,
) -> Job:
    """Queues a job that brings writes of the store's clients to the other side now.

    Workers do this by themselves every few seconds, for stores that capture writes.
    """
    return _queue("sync", id, context, response, services)


@router.post("/{id}/pause", summary="Pause a migration", responses=PROBLEMS)
def pause_migration(
    id: MigrationId, context: WriteContext, _body: NoBody, services: Svc
) -> MigrationAnswer:
    """Asks the run to stop after its present batch. `run` continues from there.

    The answer may still have the state `running`.
    """
    return MigrationAnswer.of(_take(services, records.pause, id, context))


@router.post("/{id}/cutover", summary="Cut a store over", responses=PROBLEMS)
def cut_over(
    id: MigrationId, context: WriteContext, _body: NoBody, services: Svc
) -> MigrationAnswer:
    """Makes the store's clients see the new vectors. `rollback` undoes it until `finish`.

    Refuses while `verify` has not passed since the last run, and for stores of the kinds
    `lancedb`, `sqlite-vec` and `faiss`, whose application opens the new vectors itself.
    If the server stops in the middle, the same call completes it.
    """
    return MigrationAnswer.of(_take(services, steps.cutover, id, context))


@router.post("/{id}/rollback", summary="Roll a store back", responses=PROBLEMS)
def roll_back(
    id: MigrationId, context: WriteContext, _body: NoBody, services: Svc
) -> MigrationAnswer:
    """Makes the store's clients see the old vectors again.

    Rows that they wrote since the cutover have translated vectors. The new vectors stay, so that
    `cutover` is possible again.
    """
    return MigrationAnswer.of(_take(services, steps.rollback, id, context))


@router.post("/{id}/finish", summary="Finish a migration", responses=PROBLEMS)
def finish_migration(
    id: MigrationId, context: WriteContext, _body: NoBody, services: Svc
) -> MigrationAnswer:
    """Deletes the old vectors. The store then belongs to the target encoder.

    A rollback is no longer possible. Stores of the kinds `lancedb`, `sqlite-vec` and `faiss` keep
    both vectors and their encoder: the application opens the new ones.
    """
    return MigrationAnswer.of(_take(services, steps.finish, id, context))


@router.post("/{id}/abandon", summary="Abandon a migration", responses=PROBLEMS)
def abandon_migration(
    id: MigrationId, context: WriteContext, _body: NoBody, services: Svc
) -> MigrationAnswer:
    """Deletes the new vectors and all traces in the store. The old vectors stay as they are."""
    return MigrationAnswer.of(_take(services, steps.abandon, id, context))


def _queue(
    action: str,
    id_: str,
    context: RequestContext,
    response: Response,
    services: Services,
) -> Job:
    """Queues a job, and names it in the header `Location`."""
    row = records.queue_action(services, context, id_, action)
    response.headers["Location"] = f"/jobs/{row.id}"
    return Job.model_validate(row)


def _take(
    services: Services, step: Step, id_: str, context: RequestContext
) -> records.MigrationStatus:
    """Takes a step, and returns the migration as it is now."""
    step(services, context, id_)
    return records.find_migration(services, context.project, id_)
