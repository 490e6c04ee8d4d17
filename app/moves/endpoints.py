"""/migrations: plans that move a store to another encoder, and the jobs and steps of each."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Response, Security

from app.context import RequestContext, Services
from app.http.bodies import json_body, read_no_body
from app.http.deps import Limit, Moment, Reads, Svc, WriteContext, request_context
from app.http.fields import NAME_PATTERN
from app.http.problems import documented
from app.jobs.schemas import Job
from app.moves import plan, service, steps
from app.moves.schemas import Cutover, MigrationAnswer, MigrationLimits, MigrationList, NewMigration
from app.types import Scope

router = APIRouter(prefix="/migrations", tags=["Migrate"])

#: what a route with a body may answer
REFUSED = documented(400, 404, 409, 413, 415, 422)

MigrationId = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$", description="Id of the migration.")]


@router.post("", status_code=201, summary="Plan a migration", responses=REFUSED)
def plan_migration(
    context: WriteContext,
    body: Annotated[NewMigration, json_body(NewMigration)],
    response: Response,
    services: Svc,
) -> MigrationAnswer:
    """Reads a store, checks it, and plans its move to another encoder. Writes nothing to the store.

    With texts, the plan says what embedding every row costs: tokens, price, time and disk. Without
    them it says what translated vectors are worth, beside the other options.
    It is refused with `wrong-space` if the vectors look like those of another encoder.
    """
    row = plan.plan_migration(services, context, body)
    response.headers["Location"] = f"/migrations/{row.id}"
    return MigrationAnswer.of(service.find_migration(services, context.project, row.id))


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
    found = service.list_migrations(services, project, store=store, before=before, limit=limit + 1)
    page = [MigrationAnswer.of(each) for each in found[:limit]]
    more = len(found) > limit
    return MigrationList(
        migrations=page, next_before=page[-1].created_at.isoformat() if more else None
    )


@router.get("/{id}", summary="Get a migration", responses=documented(404, 422))
def get_migration(id: MigrationId, services: Svc, project: Reads) -> MigrationAnswer:
    """Returns a migration: its plan, its progress, and the calls that are possible now."""
    return MigrationAnswer.of(service.find_migration(services, project, id))


@router.patch("/{id}", summary="Change limits", responses=REFUSED)
def change_limits(
    id: MigrationId,
    context: WriteContext,
    body: Annotated[MigrationLimits, json_body(MigrationLimits)],
    services: Svc,
) -> MigrationAnswer:
    """Changes the limits that the body names, while the migration is planned or paused."""
    limits = body.model_dump(exclude_unset=True)
    return MigrationAnswer.of(service.change_limits(services, context, id, limits))


#: what the routes of jobs and steps share: none has a body
CALL: dict[str, Any] = {
    "responses": documented(400, 404, 409, 413, 422),
    # the scope first: a body is read for those who may call the route
    "dependencies": [Security(request_context, scopes=[Scope.write]), Depends(read_no_body)],
}


@router.post("/{id}/run", status_code=202, summary="Run a migration", **CALL)
def run_migration(id: MigrationId, context: WriteContext, response: Response, services: Svc) -> Job:
    """Queues the job that gives every row a new vector and keeps the old one.

    The job continues where an earlier one was paused or stopped. Clients of the store see no
    difference until `cutover`.
    """
    return _queue("run", id, context, response, services)


@router.post("/{id}/verify", status_code=202, summary="Verify a migration", **CALL)
def verify_migration(
    id: MigrationId, context: WriteContext, response: Response, services: Svc
) -> Job:
    """Queues the job that checks a filled migration. `cutover` needs one that passed.

    It compares the numbers of rows, everything that is not the vector, and the new vectors of
    sampled rows with fresh ones. It measures the recall of the index before and after, where the
    store has a cutover; elsewhere `finish` needs one that passed.
    """
    return _queue("verify", id, context, response, services)


@router.post("/{id}/sync", status_code=202, summary="Synchronise a store", **CALL)
def synchronise_store(
    id: MigrationId, context: WriteContext, response: Response, services: Svc
) -> Job:
    """Queues a job that brings writes of the store's clients to the other side now.

    Workers do this by themselves every few seconds, for stores that capture writes.
    """
    return _queue("sync", id, context, response, services)


@router.post("/{id}/pause", summary="Pause a migration", **CALL)
def pause_migration(id: MigrationId, context: WriteContext, services: Svc) -> MigrationAnswer:
    """Asks the run to stop after its present batch. `run` continues from there.

    The answer may still have the state `running`.
    """
    return MigrationAnswer.of(service.pause(services, context, id))


@router.post("/{id}/cutover", summary="Cut a store over", responses=REFUSED)
def cut_over(
    id: MigrationId,
    context: WriteContext,
    body: Annotated[Cutover, json_body(Cutover, optional=True)],
    services: Svc,
) -> MigrationAnswer:
    """Makes the store's clients see the new vectors. `rollback` undoes it until `finish`.

    Refuses while `verify` has not passed since the last run, and for stores of the kinds
    `lancedb`, `sqlite-vec` and `faiss`, whose application opens the new vectors itself.
    If the server stops in the middle, the same call completes it.
    """
    return MigrationAnswer.of(steps.take_step(services, context, id, "cutover", force=body.force))


@router.post("/{id}/rollback", summary="Roll a store back", **CALL)
def roll_back(id: MigrationId, context: WriteContext, services: Svc) -> MigrationAnswer:
    """Makes the store's clients see the old vectors again.

    Rows that they wrote since the cutover have vectors by the old encoder where the service runs
    it and there are texts, else translated ones. The new vectors stay, so that
    `cutover` is possible again.
    """
    return MigrationAnswer.of(steps.take_step(services, context, id, "rollback"))


@router.post("/{id}/finish", summary="Finish a migration", **CALL)
def finish_migration(id: MigrationId, context: WriteContext, services: Svc) -> MigrationAnswer:
    """Deletes the old vectors. The store then belongs to the target encoder.

    A rollback is no longer possible. Stores of the kinds `lancedb`, `sqlite-vec` and `faiss` keep
    both vectors and their encoder: the application opens the new ones.
    """
    return MigrationAnswer.of(steps.take_step(services, context, id, "finish"))


@router.post("/{id}/abandon", summary="Abandon a migration", **CALL)
def abandon_migration(id: MigrationId, context: WriteContext, services: Svc) -> MigrationAnswer:
    """Deletes the new vectors and all traces in the store. The old vectors stay as they are."""
    return MigrationAnswer.of(steps.take_step(services, context, id, "abandon"))


def _queue(
    action: str, id_: str, context: RequestContext, response: Response, services: Services
) -> Job:
    """Queues a job, and names it in the header `Location`."""
    row = service.queue_action(services, context, id_, action)
    response.headers["Location"] = f"/jobs/{row.id}"
    return Job.model_validate(row)
