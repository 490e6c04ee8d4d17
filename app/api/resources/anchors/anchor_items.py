"""/anchor-sets/{name}/items: more items for an anchor set."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter
from pydantic import ConfigDict

from app.api.http.bodies import ITEM_COLUMNS, json_body
from app.api.http.deps import IdempotencyKey, PathName, Svc, WriteContext
from app.api.http.problems import documented
from app.api.schemas.anchor_sets import AnchorSet, ItemsBody
from app.errors import MissingField
from app.services.access.idempotency import idempotent
from app.services.anchors import growth
from app.storage import tables

router = APIRouter(prefix="/anchor-sets/{name}/items", tags=["anchor sets"])


class NewItems(ItemsBody):
    """Items in the order in which the set continues: `embeddings`, `inputs` to encode, or both.

    Each item needs a vector by each encoder of the set: from `embeddings`, or else encoded from
    `inputs`. A set that stores its inputs needs `inputs` in any case.
    """

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"embeddings": {"old": [[1, 1, 0]], "new": [[0, 2, 1]]}}]}
    )


@router.post(
    "",
    status_code=201,
    summary="Append items",
    responses=documented(400, 404, 409, 413, 415, 422),
)
def append_items(
    name: PathName,
    context: WriteContext,
    body: Annotated[NewItems, json_body(NewItems, vectors=True, query=True, readers=ITEM_COLUMNS)],
    services: Svc,
    repeat: IdempotencyKey,
) -> AnchorSet:
    """Appends items to a set in all its spaces at once, as the next version of the set.

    Requests that began before keep the old version to their end. Relative vectors have one number
    for each anchor, so those of the old version cannot be decoded with the new one. The request
    fails with `in-use` if a head reads relative vectors of the set.
    """
    inputs = body.items()

    embeddings = body.by_encoder() or {}
    if not embeddings and inputs is None:
        raise MissingField("Send `embeddings`, `inputs` or both.", field="embeddings")
    make = partial(
        growth.append_items,
        services,
        anchor_set=name,
        embeddings=embeddings,
        inputs=inputs,
        roles=body.roles,
    )
    return AnchorSet.model_validate(
        idempotent(services, context, repeat, tables.AnchorSetRow, make)
    )
