"""/console/map: native and translated vectors of a pair in one plane."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlencode

import torch
from fastapi import APIRouter, Query, Request, Response

from app.api.http.admission import CONSOLE
from app.api.http.deps import ReadContext, Reads, Svc
from app.console.fields import NameField
from app.console.overview import find_pairs
from app.console.pages import is_fragment, render
from app.services.anchors.made_pairs import NOT_MEASURED
from app.services.anchors.nearest_anchors import find_text
from app.services.context import Services
from app.services.request_context import RequestContext
from app.services.translators.pair_map import PairMap, map_pair
from app.services.translators.translators import FitRequest
from app.storage.queries.resources import pair_reports

router = APIRouter()

MAP = f"{CONSOLE}/map"

#: numbers of each item in the answer with the points, and the bytes of a number
NUMBERS_PER_POINT, POINT_BYTES = 6, 4

#: the share of items that the summary's second error covers
MAX_ITEMS = 0.9

ChosenName = Annotated[str, Query(max_length=100)]


@dataclass(frozen=True)
class PairChoice:
    """A pair of one anchor set.

    mistakes  for a name that cannot be chosen, what is wrong with it, by field
    report    id of the pair's best translator; None without one
    """

    anchor_set: str
    source: str
    target: str
    mistakes: dict[str, str]
    report: str | None


@router.get(MAP)
def show_map(
    request: Request,
    services: Svc,
    project: Reads,
    anchor_set: ChosenName = "",
    source: ChosenName = "",
    target: ChosenName = "",
) -> Response:
    """Shows the page, whose scripts ask for the points and for the numbers."""
    choice = choose_pair(services, project, anchor_set, source, target)
    return _page(request, choice, None)


@router.get(f"{MAP}/summary")
def show_summary(
    request: Request,
    services: Svc,
    context: ReadContext,
    anchor_set: NameField,
    source: NameField,
    target: NameField,
) -> Response:
    """Shows the numbers of a map. Raises the errors of `map_pair`."""
    summary = _summarise(_map_of(services, context, anchor_set, source, target))
    if is_fragment(request):
        return render(request, "map_summary.html", summary=summary)
    return _page(
        request, choose_pair(services, context.project, anchor_set, source, target), summary
    )


@router.get(f"{MAP}/points")
def get_points(
    services: Svc,
    context: ReadContext,
    anchor_set: NameField,
    source: NameField,
    target: NameField,
) -> Response:
    """Returns the points as little-endian float32.

    The number of items n; x and y of the n native vectors; x and y of the n translated ones; the n
    errors, 1 - cosine; the n rows of the anchor set. Raises the errors of `map_pair`.
    """
    found = _map_of(services, context, anchor_set, source, target)
    plane, count = found.plane, len(found.rows)
    context.reserve_bytes(count * NUMBERS_PER_POINT * POINT_BYTES)
    parts = (plane.native, plane.translated, plane.errors, found.rows)
    numbers = torch.cat(
        [torch.tensor([count]).float(), *(part.flatten().float() for part in parts)]
    )
    return Response(
        numbers.numpy().astype("<f4").tobytes(),
        media_type="application/octet-stream",
        headers={"Cache-Control": "no-store"},
    )


@router.get(f"{MAP}/item")
def get_item(
    services: Svc, project: Reads, anchor_set: NameField, row: Annotated[int, Query(ge=0)]
) -> dict[str, str | None]:
    """Returns the text of an item; null if the set keeps none, or the item is an image.

    Raises AnchorSetNotFound, InvalidRequest.
    """
    return {"text": find_text(services, project, anchor_set, row)}


def choose_pair(
    services: Services, project: str, anchor_set: str, source: str, target: str
) -> PairChoice | None:
    """Return the named pair; an empty name means the first one. None if no set has a pair."""
    encoders: dict[str, list[str]] = {}
    for pair in find_pairs(services, project):
        members = encoders.setdefault(pair.anchor_set, [])
        if pair.source not in members:
            members.append(pair.source)
    sets = list(encoders)
    if not sets:
        return None
    mistakes: dict[str, str] = {}
    if anchor_set and anchor_set not in sets:
        mistakes["anchor_set"] = f"No anchor set {anchor_set!r} has embeddings by two encoders."
    anchor_set = anchor_set if anchor_set in sets else sets[0]
    members = encoders[anchor_set]
    for field, name in (("source", source), ("target", target)):
        if name and name not in members:
            mistakes[field] = f"Anchor set {anchor_set!r} has no embeddings by {name!r}."
    source = source if source in members else members[0]
    if target == source:
        mistakes["target"] = "Source and target are the same encoder. Choose two different ones."
    if target == source or target not in members:
        target = next(name for name in members if name != source)
    with services.db.transaction() as session:
        recalls = {
            each.translator: each.recall or 0.0
            for each in pair_reports(session, project)
            if (each.source, each.target, each.anchor_set) == (source, target, anchor_set)
        }
    best = max(recalls, key=recalls.__getitem__, default=None)
    return PairChoice(anchor_set, source, target, mistakes, best)


def _map_of(
    services: Services, context: RequestContext, anchor_set: str, source: str, target: str
) -> PairMap:
    return map_pair(services, context, FitRequest(source, target, anchor_set, "auto", {}))


def _page(
    request: Request, choice: PairChoice | None, summary: dict[str, object] | None
) -> Response:
    query = ""
    if choice is not None:
        chosen = {name: getattr(choice, name) for name in ("anchor_set", "source", "target")}
        query = urlencode(chosen)
    return render(request, "map.html", choice=choice, query=query, summary=summary)


def _summarise(found: PairMap) -> dict[str, object]:
    """Returns what the template `map_summary.html` shows."""
    plane = found.plane
    apart = (plane.native - plane.translated).norm(dim=1)
    return {
        "shown": len(found.rows),
        "size": found.size,
        "method": found.fitted.method,
        "translator": found.fitted.id,
        "held_out": plane.held_out,
        "not_measured": NOT_MEASURED if found.made else None,
        "cosine": 1 - float(plane.errors.median()),
        "least": 1 - float(plane.errors.double().quantile(MAX_ITEMS)),
        "apart": float(apart.median()),
        "explained": plane.explained,
    }
