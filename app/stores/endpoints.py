"""/stores: collections of somebody's vector database."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Response

from app.db import resources, tables
from app.http.bodies import json_body
from app.http.deps import After, Limit, PathName, Reads, Svc, WriteContext
from app.http.problems import documented
from app.stores import service as stores
from app.stores.port import StoreNote
from app.stores.schemas import NewStore, StoreEntryOut, StoreOut, StorePage
from app.stores.service import StoreReport

router = APIRouter(prefix="/stores", tags=["Search an old index"])


def describe(report: StoreReport) -> StoreOut:
    """The answer for a store."""
    row, facts = report.row, report.facts
    members = {
        name: getattr(source, name)
        for source in (facts, row)
        for name in StoreOut.model_fields
        if hasattr(source, name)
    }
    notes = list(facts.notes)
    if report.mixture:
        notes.append(StoreNote("mixed-vectors", f"{report.mixture}."))
    more = {
        "encoder": {"name": row.encoder.name},
        "options": row.options,
        "capabilities": report.capabilities,
        "notes": notes,
        "space": {**asdict(report.space), "foreign": report.foreign},
    }
    return StoreOut.model_validate({**members, **more}, from_attributes=True)


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
    response.headers["Location"] = f"/stores/{made.row.name}"
    return describe(made)


@router.get("", summary="List stores", responses=documented(422))
def list_stores(services: Svc, project: Reads, after: After = "", limit: Limit = 100) -> StorePage:
    """Returns the project's stores in the order of their names. Connects to none."""
    with services.db.transaction() as session:
        rows = resources.page(session, tables.StoreRow, project, after=after, limit=limit)
    return StorePage(stores=[StoreEntryOut.model_validate(row) for row in rows])


@router.get("/{name}", summary="Get a store", responses=documented(404, 409, 422))
async def get_store(name: PathName, services: Svc, project: Reads) -> StoreOut:
    """Connects to a store, and returns what it is now."""
    return describe(await stores.look_at_store(services, project, name))


@router.delete(
    "/{name}", status_code=204, summary="Disconnect a store", responses=documented(404, 409, 422)
)
def delete_store(name: PathName, services: Svc, context: WriteContext) -> None:
    """Forgets a store. Changes nothing in the store itself.

    Fails with `in-use` while a migration has traces in the store.
    """
    stores.delete_store(services, context, name)
