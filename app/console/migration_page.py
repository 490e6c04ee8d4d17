"""/console/stores/{name}: the buttons of a store's migration, each with a page that confirms it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from app.console import wording
from app.console.forms import Form, text_of
from app.console.overview import find_pairs, next_call
from app.console.pages import redirect, render
from app.context import Services
from app.db.tables import StoreRow
from app.errors import Conflict, NotFound
from app.http.admission import CONSOLE
from app.http.deps import PathName, Reads, Svc, WriteContext
from app.moves import plan, steps
from app.moves import service as migrations
from app.moves.schemas import NewMigration
from app.moves.service import NextCall
from app.stores import service as stores
from app.stores.registry import has_cutover
from app.types import Scope

router = APIRouter()

STORE_PAGE = f"{CONSOLE}/stores/{{name}}"


@router.get(f"{STORE_PAGE}/live")
def show_live_store(request: Request, name: PathName, services: Svc, project: Reads) -> Response:
    """Shows the part of a store's page that changes while a job runs. Raises NotFound."""
    row = stores.find_store(services, project, name)
    return render(
        request, "store_migration.html", store=row, **migration_values(request, services, row)
    )


@router.get(f"{STORE_PAGE}/plan")
def show_plan_form(request: Request, name: PathName, services: Svc, project: Reads) -> Response:
    """Shows the form of a plan. Raises NotFound."""
    row = stores.find_store(services, project, name)
    pairs = [each for each in find_pairs(services, project) if each.source == row.encoder.name]
    return render(request, "store_plan.html", store=row, pairs=pairs)


@router.post(f"{STORE_PAGE}/plan")
def plan_migration(
    request: Request, name: PathName, services: Svc, context: WriteContext, form: Form
) -> Response:
    """Plans a migration, and shows it on the store's page. Raises as `plan.plan_migration`."""
    target, _, anchor_set = text_of(form, "pair").partition("@")
    # Not validated, so that a pair of unknown names is answered as one that is not found.
    wanted = NewMigration.model_construct(store=name, target=target, anchor_set=anchor_set)
    plan.plan_migration(services, context, wanted)
    return redirect(request, f"{CONSOLE}/stores/{name}")


@router.get(f"{STORE_PAGE}/steps/{{call}}")
def confirm_step(
    request: Request, name: PathName, call: NextCall, services: Svc, project: Reads
) -> Response:
    """Says what a call does to the rows, and asks for it. Raises as the call, before it begins."""
    move = _active(services, project, name)
    if call not in move.next:
        migrations.refuse_unless_possible(move.row, call, busy=move.is_busy)
        steps.refuse_below_estimate(move.row)
    words = _calls(move.row.store)[call]
    return render(request, "store_step.html", move=move, call=call, words=words, store=name)


@router.post(f"{STORE_PAGE}/steps/{{call}}")
def take_step(
    request: Request,
    name: PathName,
    call: NextCall,
    services: Svc,
    context: WriteContext,
    form: Form,
) -> Response:
    """Takes a step of the migration that the reader has seen. Raises as the API's call."""
    id_ = _active(services, context.project, name).row.id
    if text_of(form, "migration") != id_:
        raise Conflict("The store has another migration now. Open the store's page again.")
    if call in migrations.ACTIONS:
        migrations.queue_action(services, context, id_, call)
    elif call == "pause":
        migrations.pause(services, context, id_)
    else:
        steps.take_step(services, context, id_, call)
    return redirect(request, f"{CONSOLE}/stores/{name}")


def migration_values(request: Request, services: Services, row: StoreRow) -> dict[str, Any]:
    """Returns what the template `store_migration.html` shows: the last migration of a store."""
    moves = migrations.list_migrations(services, row.project, store=row.name, limit=1)
    move = moves[0] if moves else None
    return {
        "move": move,
        "next_call": None if move is None else next_call(move),
        "calls": _calls(row),
        "states": wording.MIGRATION_STATES,
        "may_write": request.state.context.may(Scope.write),
    }


def _calls(store: StoreRow) -> dict[str, wording.CallWords]:
    """Returns the calls that a migration of this store has, with their words."""
    if has_cutover(store.kind):
        return wording.CALLS
    calls = {
        call: words for call, words in wording.CALLS.items() if call not in migrations.CUTOVER_CALLS
    }
    return {**calls, "finish": wording.FINISH_EMBEDDED}


def _active(services: Services, project: str, name: str) -> migrations.MigrationStatus:
    """Returns the store's migration. Raises NotFound."""
    stores.find_store(services, project, name)
    for move in migrations.list_migrations(services, project, store=name, limit=1):
        if move.row.ended_at is None:
            return move
    raise NotFound(f"No migration of the store {name!r} is under way. Plan one.", "migration")
