"""/console: the stores with what to do now."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

from fastapi import APIRouter, Request, Response

from app.console import wording
from app.console.pages import redirect, render
from app.context import Services
from app.db import resources
from app.db.tables import StoreRow
from app.http.admission import CONSOLE
from app.http.deps import Reads, Svc
from app.moves.service import MigrationStatus, list_migrations
from app.types import EncoderKind

router = APIRouter()

#: most stores, with the newest migrations
MAX_STORES = 200


@dataclass(frozen=True)
class EncoderPair:
    """Two encoders with a common anchor set; an index moves from `source` to `target`."""

    anchor_set: str
    source: str
    target: str


def find_pairs(services: Services, project: str) -> list[EncoderPair]:
    """Returns every ordered pair of encoders of every anchor set."""
    with services.db.transaction() as session:
        rows = resources.spaces(session, project)
    sets: dict[str, list[str]] = {}
    for row in rows:
        sets.setdefault(row.anchor_set.name, []).append(row.encoder.name)
    return [
        EncoderPair(anchor_set, source, target)
        for anchor_set, encoders in sets.items()
        for source, target in permutations(encoders, 2)
    ]


@router.get(f"{CONSOLE}/")
def leave_slash_out(request: Request) -> Response:
    """Redirects to the stores."""
    return redirect(request, CONSOLE)


@router.get(CONSOLE)
def show_overview(request: Request, services: Svc, project: Reads) -> Response:
    """Shows the stores with what to do now."""
    with services.db.transaction() as session:
        stores = resources.page(session, StoreRow, project, after="", limit=MAX_STORES)
        changed = [
            each
            for each in resources.encoders_but(session, project, EncoderKind.external)
            if each.has_changed
        ]
    moves: dict[str, MigrationStatus] = {}
    for move in list_migrations(services, project, limit=MAX_STORES):
        if move.row.ended_at is None:
            moves.setdefault(move.row.store.name, move)
    return render(
        request,
        "overview.html",
        stores=stores,
        changed=changed,
        check_tones=wording.CHECK_TONES,
        moves=moves,
        pairs=find_pairs(services, project),
        states=wording.MIGRATION_STATES,
        calls=wording.CALLS,
        next_call=next_call,
    )


def next_call(move: MigrationStatus) -> str | None:
    """Returns the call that brings a migration on; None while a job works."""
    wanted = ["cutover", "finish", "verify", "run"]
    if len(move.next) == 1:  # the only one: it was interrupted
        wanted += ["rollback", "abandon"]
    return next((call for call in wanted if call in move.next), None)
