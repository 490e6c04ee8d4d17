"""/stores: collections of somebody's vector database."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Response

from app.db import resources, tables
from app.http.bodies import json_body
from app.http.deps import After, Limit, PathName, Reads, Svc, WriteContext
from app.http.problems import documented
from app.stores import queries
from app.stores import service as stores
from app.stores.schemas import NewStore, StoreEntryOut, StoreOut, StorePage

router = APIRouter(prefix="/stores", tags=["Search an old index"])


@router.post(
    "",
    status_code=201,
    summary="Connect a store",
    responses=documented(400, 404, 409, 413, 415, 422),
)
def create_store(
    context: WriteContext,
    body: Annotated[NewStore, json_body(NewStore)],
    response: Response,
    services: Svc,
) -> StoreOut:
    """Connects a collection, reads what it is, and compares its vectors with the anchors.

    Nothing is written to the store.
    """
    made = stores.create_store(services, context, body)
    response.headers["Location"] = f"/stores/{made.name}"
    return made


@router.get("", summary="List stores", responses=documented(422))
def list_stores(services: Svc, project: Reads, after: After = "", limit: Limit = 100) -> StorePage:
    """Returns the project's stores in the order of their names. Connects to none."""
    with services.db.transaction() as session:
        rows = resources.page(session, tables.StoreRow, project, after=after, limit=limit)
        shown = queries.shown_encoders(session, project)
    page = StorePage(stores=[StoreEntryOut.model_validate(row) for row in rows])
    for row, entry in zip(rows, page.stores, strict=True):
        entry.encoder = shown.get(row.id, entry.encoder)
    return page


@router.get("/{name}", summary="Get a store", responses=documented(404, 409, 422))
async def get_store(name: PathName, services: Svc, project: Reads) -> StoreOut:
    """Connects to a store, and returns what it is now."""
    return await stores.look_at_store(services, project, name)


@router.delete(
    "/{name}", status_code=204, summary="Disconnect a store", responses=documented(404, 409, 422)
)
def delete_store(name: PathName, services: Svc, context: WriteContext) -> None:
    """Forgets a store. Changes nothing in the store itself.

    Fails with `in-use` while a migration has traces in the store.
    """
    stores.delete_store(services, context, name)
