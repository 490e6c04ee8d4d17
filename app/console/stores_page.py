"""/console/stores: what a store holds, what to do with it, and a search of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from anyio import to_thread
from fastapi import APIRouter, Request, Response

from app.api.http.admission import CONSOLE
from app.api.http.deps import PathName, ReadContext, Reads, Svc
from app.console.fields import NameField
from app.console.forms import Form, text_of
from app.console.migration_page import migration_values
from app.console.overview import find_pairs, show_advice
from app.console.pages import is_fragment, redirect, render
from app.errors import AnchorageError, InvalidRequest
from app.services.context import Services
from app.services.encoders.encoding import Inputs
from app.services.relevance.advice import AdviceTask, advise_by_records
from app.services.request_context import RequestContext
from app.services.stores import stores
from app.services.stores.search import StoreAnswer, StoreSearch, search_store
from app.services.translators.translators import FitRequest
from app.storage.queries import native_vectors, resources
from app.types import EncoderKind, InputRole, Modality

router = APIRouter()

STORES_PAGE = f"{CONSOLE}/stores"

#: results of a search, and characters that are shown of each
SHOWN, SHOWN_CHARACTERS = 10, 300


@router.get(STORES_PAGE)
def show_stores(request: Request) -> Response:
    """Redirects to the first page, which lists the stores."""
    return redirect(request, CONSOLE)


@router.get(f"{STORES_PAGE}/{{name}}")
def show_store(request: Request, name: PathName, services: Svc, project: Reads) -> Response:
    """Shows one store; the browser asks for what it holds. Raises StoreNotFound."""
    return _page(request, services, project, name)


@router.get(f"{STORES_PAGE}/{{name}}/facts")
async def show_facts(request: Request, name: PathName, services: Svc, project: Reads) -> Response:
    """Shows what a store holds now. Raises as `look_at_store`."""
    report = await stores.look_at_store(services, project, name)
    mixture = stores.describe_mixture(report.space, report.foreign, report.row.encoder.name)
    return render(request, "store_facts.html", report=report, mixture=mixture)


@router.get(f"{STORES_PAGE}/{{name}}/verdict")
def show_store_verdict(
    request: Request,
    name: PathName,
    services: Svc,
    context: ReadContext,
    target: NameField,
    anchor_set: NameField,
    brief: bool = False,
) -> Response:
    """Shows the verdict about a store of this size, or one line of it. Raises as `advise`."""
    row, size = stores.find_store(services, context.project, name), None
    with suppress(AnchorageError):  # what the store holds shows its error
        size = stores.call_row(services, row, lambda opened: opened.facts()).rows or None
    task = AdviceTask(
        FitRequest(row.encoder.name, target, anchor_set, "auto", {}),
        corpus_size=size,
        text_exists=True if row.options.get("text_field") else None,
    )
    advice, evaluation = advise_by_records(services, context, task)
    template = "verdict_line.html" if brief else "verdict.html"
    return show_advice(request, template, advice, evaluation, target)


@router.post(f"{STORES_PAGE}/{{name}}/search")
async def search(
    request: Request, name: PathName, services: Svc, context: ReadContext, form: Form
) -> Response:
    """Shows what the new encoder finds in the store, next to the old one if the service runs it.

    Raises as `search_store` for the new encoder.
    """
    target, _, anchor_set = text_of(form, "pair").partition("@")
    text = text_of(form, "text")
    if not text:
        raise InvalidRequest("Enter a question or another text.", field="text")
    row = await to_thread.run_sync(stores.find_store, services, context.project, name)
    new = await _search(services, context, name, text, target, anchor_set or None)
    old, why = None, "The service does not run it, so it cannot embed the text."
    if row.encoder.kind != EncoderKind.external:
        try:
            old = await _search(services, context, name, text, row.encoder.name)
        except AnchorageError as error:
            why = error.detail
    found = {
        "text": text,
        "target": target,
        "source": row.encoder.name,
        "why": why,
        "answer": new,
        "both": set(new.results[0].ids) & set(old.results[0].ids if old else ()),
        "old": old and old.results[0],
        "new": new.results[0],
        "text_of": partial(shown_text, text_field=row.options.get("text_field")),
    }
    if is_fragment(request):
        return render(request, "store_found.html", found=found)
    return await to_thread.run_sync(_page, request, services, context.project, name, found)


async def _search(
    services: Services,
    context: RequestContext,
    store: str,
    text: str,
    target: str,
    anchor_set: str | None = None,
) -> StoreAnswer:
    inputs = Inputs([text], InputRole.query)
    wanted = StoreSearch(store, target, inputs=inputs, anchor_set=anchor_set, k=SHOWN, payload=True)
    return await search_store(services, context, wanted)


def _page(
    request: Request,
    services: Services,
    project: str,
    name: str,
    found: Mapping[str, Any] | None = None,
) -> Response:
    row = stores.find_store(services, project, name)
    pairs = [each for each in find_pairs(services, project) if each.source == row.encoder.name]
    with services.db.transaction() as session:
        running = [
            each.name
            for each in resources.encoders_but(session, project, EncoderKind.external)
            if each.modality == Modality.text and each.id != row.encoder_id
        ]
        minute, day = native_vectors.spent_texts(session, project)
    searched = {
        f"{each.target}@{each.anchor_set}": f"{each.target}, by the anchors {each.anchor_set}"
        for each in pairs
        if each.target in running
    }
    if row.options.get("text_field") and row.encoder.kind != EncoderKind.external:
        searched |= {f"{name}@": f"{name}, without anchors" for name in running}
    limits = services.limits
    return render(
        request,
        "store.html",
        store=row,
        pairs=pairs,
        searched=searched,
        found=found,
        spent={
            "today": (day, limits.native_texts_a_day),
            "in this minute": (minute, limits.native_texts_a_minute),
        },
        **migration_values(request, services, row),
    )


def shown_text(payload: Mapping[str, Any], text_field: str | None) -> str:
    """Returns the text of a result, or all that the store holds of it, cut to a line or two."""
    whole = payload.get(text_field or "")
    if not isinstance(whole, str):
        whole = json.dumps(payload, default=str, ensure_ascii=False)
    return whole if len(whole) <= SHOWN_CHARACTERS else f"{whole[:SHOWN_CHARACTERS]}…"
