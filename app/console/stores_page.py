"""/console/stores: what a store holds, and what to do with it."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from app.anchors.store_texts import shown_text
from app.console import wording
from app.console.charts import verdict_chart
from app.console.migration_page import STORE_PAGE, cost_to_embed, migration_values
from app.console.pages import render
from app.errors import AnchorageError
from app.http.deps import PathName, ReadContext, Reads, Svc
from app.http.fields import NAME_PATTERN
from app.maths.quality.estimate import LARGEST_INDEX, SMALLEST_INDEX
from app.moves.service import list_migrations
from app.search.advice import AdviceFacts, advise
from app.search.schemas import StoreSearchRequest
from app.search.service import search_store
from app.stores import service as stores
from app.translate.maps import FitRequest

router = APIRouter()

#: results of a search, and most characters of their texts
HITS, TEXT_SHOWN = 5, 300

NameField = Annotated[str, Query(pattern=NAME_PATTERN)]


@router.get(STORE_PAGE)
def show_store(request: Request, name: PathName, services: Svc, project: Reads) -> Response:
    """Shows one store; the browser asks for what it holds. Raises NotFound."""
    row = stores.find_store(services, project, name)
    return render(request, "store.html", store=row, **migration_values(request, services, row))


@router.get(f"{STORE_PAGE}/facts")
async def show_facts(request: Request, name: PathName, services: Svc, project: Reads) -> Response:
    """Shows what a store holds now. Raises as `look_at_store`."""
    store = await stores.look_at_store(services, project, name)
    return render(request, "store_facts.html", store=store)


@router.get(f"{STORE_PAGE}/search")
async def show_hits(
    request: Request,
    name: PathName,
    services: Svc,
    context: ReadContext,
    text: Annotated[str, Query(min_length=1, max_length=2_000)],
    encoder: NameField,
) -> Response:
    """Shows the rows that an encoder finds. Raises as `search_store`."""
    row = await run_in_threadpool(stores.find_store, services, context.project, name)
    wanted = StoreSearchRequest(target=encoder, inputs=[text], k=HITS, payload=True)
    answer, _ = await search_store(services, context, name, wanted)
    [found] = answer["results"]
    field = row.options.get("text_field")
    texts = [shown_text(field, each)[:TEXT_SHOWN] for each in found["payloads"]]
    hits = list(zip(found["ids"], found["scores"], texts, strict=True))
    moves = await run_in_threadpool(list_migrations, services, context.project, store=name, limit=1)
    sides = bool(moves) and moves[0].row.ended_at is None
    return render(request, "store_hits.html", hits=hits, answer=answer, by=encoder, sides=sides)


@router.get(f"{STORE_PAGE}/verdict")
def show_store_verdict(
    request: Request,
    name: PathName,
    services: Svc,
    context: ReadContext,
    target: NameField,
    anchor_set: NameField,
) -> Response:
    """Shows the verdict about a store of this size. Raises as `advise`."""
    row, size = stores.find_store(services, context.project, name), None
    with suppress(AnchorageError):  # what the store holds shows its error
        size = stores.call_row(services, row, lambda opened: opened.facts()).rows or None
    index = size and min(max(size, SMALLEST_INDEX), LARGEST_INDEX)
    pair = FitRequest(
        row.encoder.name, target, anchor_set, "auto", row.map_options({}), index=index
    )
    has_texts = bool(row.options.get("text_field"))
    known = AdviceFacts(text_exists=has_texts, **cost_to_embed(services, row, target))
    advice = advise(services, context, pair, known, newest=True)
    return render(
        request,
        "verdict.html",
        advice=advice,
        external=row.encoder.kind == "external",
        chart=verdict_chart(advice),
        meanings=wording.OPTIONS,
        certainties=wording.CERTAINTIES,
    )
