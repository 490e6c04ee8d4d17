"""/pools: items of one encoder for a bootstrap to find partners in, in more pieces than one request holds."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Response
from pydantic import AliasPath, BaseModel, ConfigDict, Field

from app.api.http.bodies import json_body
from app.api.http.deps import (
    After,
    IdempotencyKey,
    Limit,
    PathName,
    Reads,
    Svc,
    WriteContext,
)
from app.api.http.problems import documented
from app.api.schemas import fields
from app.api.schemas.fields import InputsBody, Name, OfRow, Role, Vectors
from app.encoders.base import Input
from app.errors import NotExactlyOne
from app.services.access.idempotency import idempotent
from app.services.anchors import pools
from app.services.encoders.encoding import Inputs
from app.services.request_context import RequestContext
from app.storage import tables
from app.storage.queries import resources
from app.types import InputRole

router = APIRouter(prefix="/pools", tags=["pools"])


class NewPool(InputsBody):
    """The pool's encoder and its first piece: `vectors`, or `inputs` to be encoded."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"encoder": "old", "vectors": [[1, 0], [0, 1], [1, 1]]}]}
    )

    encoder: Name
    vectors: Vectors = None


class NewPiece(InputsBody):
    """The next piece: `vectors`, or `inputs` to be encoded; it begins at the item `offset`, where the pool ends."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"offset": 3, "vectors": [[0.5, 0.5], [1, 2]]}]}
    )

    offset: Annotated[int, Field(ge=0, lt=2**31, description="how many items the pool has by now")]
    vectors: Vectors = None


class Pool(OfRow):
    """A pool as it is now."""

    name: str
    encoder: str = Field(validation_alias=AliasPath("encoder", "name"))
    items: int = Field(description="where the next piece begins")
    dim: int = Field(validation_alias=AliasPath("encoder", "dim"))
    bytes: int = Field(validation_alias="nbytes", description="what the vectors take, as float32")
    created_at: datetime


class PoolPage(BaseModel):
    """Pools in the order of their names."""

    pools: list[Pool]


def given(
    side: Literal["source", "target"], pool: object, inputs: Sequence[Input] | None, role: Role
) -> pools.PoolInput:
    """One side of a bootstrap: vectors or a pool's name, or inputs. Raises NotExactlyOne, and as `wire.matrix`."""
    field = f"{side}_pool"
    if (pool is None) == (inputs is None):
        raise NotExactlyOne(f"send exactly one of {field} and {side}_inputs", field=field)
    if inputs is not None:
        return pools.PoolInput(f"{side}_inputs", Inputs(inputs, InputRole(role)))
    return pools.PoolInput(field, pool if isinstance(pool, str) else fields.matrix(pool, field))


@router.put("/{name}", status_code=201, responses=documented(400, 404, 409, 413, 415, 422))
def create_pool(
    name: PathName,
    context: WriteContext,
    body: Annotated[NewPool, json_body(NewPool, vectors=True, query=True)],
    response: Response,
    services: Svc,
    repeat: IdempotencyKey,
) -> Pool:
    """Make a pool of its first piece; `POST /pools/{name}/vectors` adds others."""

    def make(context: RequestContext) -> tables.PoolRow:
        return pools.create_pool(
            services,
            context,
            name=name,
            encoder=body.encoder,
            vectors=body.vectors,
            inputs=body.given_inputs(),
        )

    row = idempotent(services, context, repeat, tables.PoolRow, make)
    response.headers["Location"] = f"/pools/{row.name}"
    return Pool.model_validate(row)


@router.post("/{name}/vectors", status_code=201, responses=documented(400, 404, 409, 413, 415, 422))
def extend_pool(
    name: PathName,
    context: WriteContext,
    body: Annotated[NewPiece, json_body(NewPiece, vectors=True, query=True)],
    services: Svc,
    repeat: IdempotencyKey,
) -> Pool:
    """Add a piece. One that was sent before is refused, and the problem's `items` says where to go on."""

    def make(context: RequestContext) -> tables.PoolRow:
        return pools.append_piece(
            services,
            context,
            name=name,
            offset=body.offset,
            vectors=body.vectors,
            inputs=body.given_inputs(),
        )

    return Pool.model_validate(idempotent(services, context, repeat, tables.PoolRow, make))


@router.get("", responses=documented(422))
def list_pools(services: Svc, project: Reads, after: After = "", limit: Limit = 100) -> PoolPage:
    """Pools in the order of their names."""
    with services.db.transaction() as session:
        rows = resources.page(session, tables.PoolRow, project, after=after, limit=limit)
    return PoolPage(pools=[Pool.model_validate(row) for row in rows])


@router.get("/{name}", responses=documented(404, 422))
def get_pool(name: PathName, services: Svc, project: Reads) -> Pool:
    """One pool: its encoder, and how many items it has."""
    with services.db.transaction() as session:
        return Pool.model_validate(resources.by_name(session, tables.PoolRow, project, name))


@router.delete("/{name}", status_code=204, responses=documented(404, 422))
def delete_pool(name: PathName, services: Svc, context: WriteContext) -> None:
    """Forget a pool. Jobs that were asked for with it keep its vectors until they end."""
    pools.delete_pool(services, context, name)
