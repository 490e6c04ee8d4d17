"""/pools: items of one encoder that a bootstrap searches, uploaded in pieces."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import AliasPath, BaseModel, ConfigDict, Field

from app.bootstrap import pools
from app.db import resources, tables
from app.http.bodies import json_body
from app.http.deps import After, Limit, PathName, Reads, Svc, WriteContext
from app.http.fields import InputsBody, Name, RowModel, Vectors
from app.http.problems import documented

router = APIRouter(prefix="/pools", tags=["Anchors"])


class NewPool(InputsBody):
    """The encoder of the pool and its first items: `vectors`, or `inputs` to encode."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"encoder": "old", "vectors": [[1, 0], [0, 1], [1, 1]]}]}
    )

    encoder: Name = Field(description="Encoder that the items belong to.")
    vectors: Vectors = Field(None, description="Vectors of the encoder. Send these or `inputs`.")


class NewPiece(InputsBody):
    """The next items of a pool: `vectors`, or `inputs` to encode."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"offset": 3, "vectors": [[0.5, 0.5], [1, 2]]}]}
    )

    offset: Annotated[int, Field(ge=0, lt=2**31)] = Field(
        description="Number of items that the pool has before this piece."
    )
    vectors: Vectors = Field(None, description="Vectors of the encoder. Send these or `inputs`.")


class Pool(RowModel):
    """A pool of items of one encoder."""

    name: str = Field(description="Name of the pool.")
    encoder: str = Field(
        validation_alias=AliasPath("encoder", "name"), description="Name of the encoder."
    )
    items: int = Field(description="Number of items: the `offset` of the next piece.")
    dim: int = Field(
        validation_alias=AliasPath("encoder", "dim"), description="Dimension of the vectors."
    )
    bytes: int = Field(
        validation_alias="nbytes", description="Size of the vectors in bytes, as float32."
    )
    created_at: datetime = Field(description="When the pool was created.")


class PoolPage(BaseModel):
    """Pools in the order of their names."""

    pools: list[Pool] = Field(description="One page of pools.")


@router.put(
    "/{name}",
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
    row = pools.create_pool(
        services,
        context,
        name=name,
        encoder=body.encoder,
        vectors=body.vectors,
        inputs=body.encoder_inputs(),
    )
    response.headers["Location"] = f"/pools/{row.name}"
    return Pool.model_validate(row)


@router.post(
    "/{name}/vectors",
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
    return Pool.model_validate(
        pools.append_piece(
            services,
            context,
            name=name,
            offset=body.offset,
            vectors=body.vectors,
            inputs=body.encoder_inputs(),
        )
    )


@router.get("", summary="List pools", responses=documented(422))
def list_pools(services: Svc, project: Reads, after: After = "", limit: Limit = 100) -> PoolPage:
    """Returns the project's pools in the order of their names."""
    with services.db.transaction() as session:
        rows = resources.page(session, tables.PoolRow, project, after=after, limit=limit)
    return PoolPage(pools=[Pool.model_validate(row) for row in rows])


@router.get("/{name}", summary="Get a pool", responses=documented(404, 422))
def get_pool(name: PathName, services: Svc, project: Reads) -> Pool:
    """Returns a pool's encoder and its number of items."""
    with services.db.transaction() as session:
        return Pool.model_validate(resources.by_name(session, tables.PoolRow, project, name))


@router.delete("/{name}", status_code=204, summary="Delete a pool", responses=documented(404, 422))
def delete_pool(name: PathName, services: Svc, context: WriteContext) -> None:
    """Deletes a pool. Jobs that use it keep its vectors until they end."""
    pools.delete_pool(services, context, name)
