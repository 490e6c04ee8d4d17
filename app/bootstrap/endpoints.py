"""/bootstrap: new anchors from a few seed pairs, as a job; /pools: the items that it searches."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Response

from app.bootstrap import service
from app.bootstrap.schemas import BootstrapRequest, NewPiece, NewPool, Pool, PoolPage
from app.db import resources, tables
from app.http.bodies import json_body
from app.http.deps import After, Limit, PathName, Reads, Svc, WriteContext
from app.http.problems import documented
from app.jobs.schemas import Job

router = APIRouter(tags=["Anchors"])


@router.put(
    "/pools/{name}",
    status_code=201,
    summary="Create a pool",
    responses=documented(400, 404, 409, 413, 415, 422),
)
def create_pool(
    name: PathName,
    context: WriteContext,
    body: Annotated[NewPool, json_body(NewPool, npy=True)],
    response: Response,
    services: Svc,
) -> Pool:
    """Creates a pool with its first items. `POST /pools/{name}/vectors` adds more."""
    row = service.create_pool(services, context, name, body)
    response.headers["Location"] = f"/pools/{row.name}"
    return Pool.model_validate(row)


@router.post(
    "/pools/{name}/vectors",
    status_code=201,
    summary="Add items to a pool",
    responses=documented(400, 404, 409, 413, 415, 422),
)
def extend_pool(
    name: PathName,
    context: WriteContext,
    body: Annotated[NewPiece, json_body(NewPiece, npy=True)],
    services: Svc,
) -> Pool:
    """Adds the next items to a pool.

    If `offset` is not the end of the pool, the request fails with `offset-mismatch`, and the
    problem's `items` has the right offset.
    """
    return Pool.model_validate(service.append_piece(services, context, name, body))


@router.get("/pools", summary="List pools", responses=documented(422))
def list_pools(services: Svc, project: Reads, after: After = "", limit: Limit = 100) -> PoolPage:
    """Returns the project's pools in the order of their names."""
    with services.db.transaction() as session:
        rows = resources.page(session, tables.PoolRow, project, after=after, limit=limit)
    return PoolPage(pools=[Pool.model_validate(row) for row in rows])


@router.get("/pools/{name}", summary="Get a pool", responses=documented(404, 422))
def get_pool(name: PathName, services: Svc, project: Reads) -> Pool:
    """Returns a pool's encoder and its number of items."""
    with services.db.transaction() as session:
        return Pool.model_validate(resources.by_name(session, tables.PoolRow, project, name))


@router.delete(
    "/pools/{name}", status_code=204, summary="Delete a pool", responses=documented(404, 422)
)
def delete_pool(name: PathName, services: Svc, context: WriteContext) -> None:
    """Deletes a pool. Jobs that use it keep its vectors until they end."""
    service.delete_pool(services, context, name)


@router.post(
    "/bootstrap",
    status_code=202,
    summary="Bootstrap an anchor set",
    responses=documented(400, 404, 409, 413, 415, 422),
)
def bootstrap(
    context: WriteContext,
    body: Annotated[BootstrapRequest, json_body(BootstrapRequest)],
    response: Response,
    services: Svc,
) -> Job:
    """Queues a job that finds pairs of the same item, and creates the anchor set `name` from them.

    The result's `estimate.right` is the estimated share of right pairs.
    If it is below `min_precision`, the job fails with `seeds-insufficient`. The error has the
    number of seeds to add (`more_seeds`), and the seeds that contradict the others (`wrong_seeds`).

    With `method: alignment`, no pairs are found: the set has items of the source's pool and the
    places where an alignment of the two spaces puts them. The result also names the translator.
    If `estimate.right` is below `min_precision`, the job fails with `spaces-not-aligned`.
    """
    row = service.request_bootstrap(services, context, body)
    response.headers["Location"] = f"/jobs/{row.id}"
    return Job.model_validate(row)
