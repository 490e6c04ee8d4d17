"""/reindexings/{id}/...: the jobs and steps that move a store to another encoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Response

from app.api.http.bodies import read_no_body
from app.api.http.deps import IdempotencyKey, Svc, WriteContext
from app.api.http.problems import documented
from app.api.schemas.jobs import Job
from app.api.schemas.reindexings import ReindexingAnswer
from app.services.access.idempotency import idempotent
from app.services.context import Services
from app.services.reindexing import reindexings, steps
from app.services.request_context import Repeat, RequestContext
from app.storage import tables

router = APIRouter(prefix="/reindexings/{id}", tags=["reindexings"])

ReindexingId = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$", description="Id of the reindexing.")]
NoBody = Annotated[None, Depends(read_no_body)]

#: what takes a step, and returns the reindexing after it
Step = Callable[[Services, RequestContext, str], reindexings.Reindexing]

PROBLEMS = documented(400, 404, 409, 413, 422)


@router.post("/run", status_code=202, summary="Run a reindexing", responses=PROBLEMS)
def run_reindexing(
    id: ReindexingId,
    context: WriteContext,
    _body: NoBody,
    response: Response,
    services: Svc,
    repeat: IdempotencyKey,
) -> Job:
    """Queues the job that gives every row a new vector and keeps the old one.

    The job continues where an earlier one was paused or stopped. Clients of the store see no
    difference until `cutover`.
    """
    return _queue("run", id, context, response, services, repeat)


@router.post("/verify", status_code=202, summary="Verify a reindexing", responses=PROBLEMS)
def verify_reindexing(
    id: ReindexingId,
    context: WriteContext,
    _body: NoBody,
    response: Response,
    services: Svc,
    repeat: IdempotencyKey,
) -> Job:
    """Queues the job that checks a filled reindexing. `cutover` needs one that passed.

    It compares the numbers of rows, a checksum of everything that is not the vector, and the new
    vectors of sampled rows. It measures the recall of the index before and after.
    """
    return _queue("verify", id, context, response, services, repeat)


@router.post("/sync", status_code=202, summary="Synchronise a store", responses=PROBLEMS)
def synchronise_store(
    id: ReindexingId,
    context: WriteContext,
    _body: NoBody,
    response: Response,
    services: Svc,
    repeat: IdempotencyKey,
) -> Job:
    """Queues a job that brings writes of the store's clients to the other side now.

    Workers do this by themselves every few seconds, for stores that capture writes.
    """
    return _queue("sync", id, context, response, services, repeat)


@router.post("/pause", summary="Pause a reindexing", responses=PROBLEMS)
def pause_reindexing(
    id: ReindexingId, context: WriteContext, _body: NoBody, services: Svc, repeat: IdempotencyKey
) -> ReindexingAnswer:
    """Asks the run to stop after its present batch. `run` continues from there.

    The answer may still have the state `running`.
    """
    return ReindexingAnswer.of(_take(services, reindexings.pause, id, context, repeat))


@router.post("/cutover", summary="Cut a store over", responses=PROBLEMS)
def cut_over(
    id: ReindexingId, context: WriteContext, _body: NoBody, services: Svc, repeat: IdempotencyKey
) -> ReindexingAnswer:
    """Makes the store's clients see the new vectors. `rollback` undoes it until `finish`.

    Refuses while `verify` has not passed since the last run.
    If the server stops in the middle, the same call completes it.
    """
    return ReindexingAnswer.of(_take(services, steps.cutover, id, context, repeat))


@router.post("/rollback", summary="Roll a store back", responses=PROBLEMS)
def roll_back(
    id: ReindexingId, context: WriteContext, _body: NoBody, services: Svc, repeat: IdempotencyKey
) -> ReindexingAnswer:
    """Makes the store's clients see the old vectors again.

    Rows that they wrote since the cutover have translated vectors. The new vectors stay, so that
    `cutover` is possible again.
    """
    return ReindexingAnswer.of(_take(services, steps.rollback, id, context, repeat))


@router.post("/finish", summary="Finish a reindexing", responses=PROBLEMS)
def finish_reindexing(
    id: ReindexingId, context: WriteContext, _body: NoBody, services: Svc, repeat: IdempotencyKey
) -> ReindexingAnswer:
    """Deletes the old vectors. The store then belongs to the target encoder.

    A rollback is no longer possible.
    """
    return ReindexingAnswer.of(_take(services, steps.finish, id, context, repeat))


@router.post("/abandon", summary="Abandon a reindexing", responses=PROBLEMS)
def abandon_reindexing(
    id: ReindexingId, context: WriteContext, _body: NoBody, services: Svc, repeat: IdempotencyKey
) -> ReindexingAnswer:
    """Deletes the new vectors and all traces in the store. The old vectors stay as they are."""
    return ReindexingAnswer.of(_take(services, steps.abandon, id, context, repeat))


def _queue(
    action: str,
    id_: str,
    context: RequestContext,
    response: Response,
    services: Services,
    repeat: Repeat | None,
) -> Job:
    """Queues a job, and names it in the header `Location`."""

    def queue(context: RequestContext) -> tables.JobRow:
        return reindexings.queue_action(services, context, id_, action)

    row = idempotent(services, context, repeat, tables.JobRow, queue)
    response.headers["Location"] = f"/jobs/{row.id}"
    return Job.model_validate(row)


def _take(
    services: Services, step: Step, id_: str, context: RequestContext, repeat: Repeat | None
) -> reindexings.Reindexing:
    """Takes a step, once for each Idempotency-Key, and returns the reindexing as it is now."""

    def take(context: RequestContext) -> tables.ReindexingRow:
        return step(services, context, id_).row

    idempotent(services, context, repeat, tables.ReindexingRow, take)
    return reindexings.find_reindexing(services, context.project, id_)
