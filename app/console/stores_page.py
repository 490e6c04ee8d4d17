"""/console/stores: what each store holds, what to do with it, and a search of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from anyio import to_thread
from fastapi import APIRouter, Request, Response

from app.api.http.admission import CONSOLE
from app.api.http.deps import PathName, ReadContext, Reads, Svc
from app.console.forms import Form, text_of
from app.console.overview import find_pairs
from app.console.pages import render
from app.errors import InvalidRequest
from app.services.encoders.encoding import Inputs
from app.services.store_migrations.records import MigrationStatus, list_migrations
from app.services.stores import stores
from app.services.stores.search import StoreSearch, search_store
from app.storage.queries import resources
from app.storage.tables import StoreRow
from app.types import InputRole

router = APIRouter()

STORES_PAGE = f"{CONSOLE}/stores"

#: most stores, and most migrations that the list looks at
MAX_LISTED = 200

#: results of a search, and characters that are shown of each
SHOWN, SHOWN_CHARACTERS = 10, 300


@router.get(STORES_PAGE)
def show_stores(request: Request, services: Svc, project: Reads) -> Response:
    """Shows the connected stores, without connecting to them."""
    with services.db.transaction() as session:
        rows = resources.page(session, StoreRow, project, after="", limit=MAX_LISTED)
    moves: dict[str, MigrationStatus] = {}
    for move in list_migrations(services, project, limit=MAX_LISTED):
        moves.setdefault(move.row.store.name, move)
    return render(request, "stores.html", stores=rows, moves=moves)


@router.get(f"{STORES_PAGE}/{{name}}")
def show_store(request: Request, name: PathName, services: Svc, project: Reads) -> Response:
    """Shows one store; the browser asks for what it holds. Raises StoreNotFound."""
    row = stores.find_store(services, project, name)
    pairs = [each for each in find_pairs(services, project) if each.source == row.encoder.name]
    moves = list_migrations(services, project, store=name, limit=1)
    return render(request, "store.html", store=row, pairs=pairs, move=moves[0] if moves else None)


@router.get(f"{STORES_PAGE}/{{name}}/facts")
async def show_facts(request: Request, name: PathName, services: Svc, project: Reads) -> Response:
    """Shows what a store holds now. Raises as `look_at_store`."""
    report = await stores.look_at_store(services, project, name)
    mixture = stores.describe_mixture(report.space, report.foreign, report.row.encoder.name)
    return render(request, "store_facts.html", report=report, mixture=mixture)


@router.post(f"{STORES_PAGE}/{{name}}/search")
async def search(
    request: Request, name: PathName, services: Svc, context: ReadContext, form: Form
) -> Response:
    """Shows what the new encoder finds in the store. Raises as `search_store`."""
    target, _, anchor_set = text_of(form, "pair").partition("@")
    text = text_of(form, "text")
    if not text:
        raise InvalidRequest("Enter a question or another text.", field="text")
    wanted = StoreSearch(
        name,
        target,
        inputs=Inputs([text], InputRole.query),
        anchor_set=anchor_set or None,
        k=SHOWN,
        payload=True,
    )
    answer = await search_store(services, context, wanted)
    found = answer.results[0]
    row = await to_thread.run_sync(stores.find_store, services, context.project, name)
    text_field = row.options.get("text_field")
    rows = [
        (score, id_, shown_text(payload, text_field), id_ in found.native)
        for id_, score, payload in zip(found.ids, found.scores, found.payloads or (), strict=True)
    ]
    return render(request, "store_found.html", rows=rows, answer=answer, text=text, target=target)


def shown_text(payload: Mapping[str, Any], text_field: str | None) -> str:
    """Returns the text of a result, or all that the store holds of it, cut to a line or two."""
    whole = payload.get(text_field or "")
    if not isinstance(whole, str):
        whole = json.dumps(payload, default=str, ensure_ascii=False)
    return whole if len(whole) <= SHOWN_CHARACTERS else f"{whole[:SHOWN_CHARACTERS]}…"
