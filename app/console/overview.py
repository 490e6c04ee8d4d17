"""/console: the stores with what to do now."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from app.console import wording
from app.console.pages import render
from app.db import resources
from app.db.tables import StoreRow
from app.http.admission import CONSOLE
from app.http.deps import Reads, Svc
from app.moves.service import MigrationStatus, list_migrations
from app.types import EncoderKind, MigrationState

router = APIRouter()

#: most stores, with the newest migrations
MAX_STORES = 200


@router.get(f"{CONSOLE}/")
@router.get(f"{CONSOLE}/stores")
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
        if move.state != MigrationState.abandoned:
            moves.setdefault(move.row.store.name, move)
    listed = services.stores.addresses.items()
    in_sql = {name: at.url.startswith("postgres") for name, at in listed if project in at.projects}
    return render(
        request,
        "overview.html",
        addresses=in_sql,
        stores=stores,
        changed=changed,
        check_tones=wording.CHECK_TONES,
        moves=moves,
        states=wording.MIGRATION_STATES,
        say_state=wording.say_state,
        say_problem=wording.say_problem,
        calls=wording.CALLS,
        button_of=wording.button_of,
        next_call=next_call,
    )


def next_call(move: MigrationStatus) -> str | None:
    """Returns the call that brings a migration on; None while a job works, and after a cutover."""
    if move.is_interrupted:
        return move.next[0]
    if move.state == MigrationState.cut_over:  # both ways are open, and a person must look first
        return None
    return next((each for each in move.next[:1] if each != "pause"), None)
