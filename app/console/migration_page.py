"""The migration on a store's page: its plan, how far it is, and the button that brings it on."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from app.console import wording
from app.console.forms import Form, text_of
from app.console.overview import next_call
from app.console.pages import redirect, render
from app.context import Services
from app.db import resources
from app.db.tables import StoreRow
from app.errors import Conflict, InvalidRequest, NotFound
from app.http.admission import CONSOLE
from app.http.bodies import validate
from app.http.deps import PathName, Reads, Svc, WriteContext
from app.moves import plan, steps
from app.moves import service as migrations
from app.moves.schemas import MigrationLimits, NewMigration
from app.moves.service import NextCall
from app.openai.queries import aliases_of
from app.stores import service as stores
from app.stores.registry import SWITCHES, has_cutover
from app.types import EncoderKind, MigrationState, Scope

router = APIRouter()

STORE_PAGE = f"{CONSOLE}/stores/{{name}}"


@router.get(f"{STORE_PAGE}/live")
def show_live_store(request: Request, name: PathName, services: Svc, project: Reads) -> Response:
    """Shows the part of a store's page that changes while a job runs. Raises NotFound."""
    row = stores.find_store(services, project, name)
    return render(
        request, "store_migration.html", store=row, **migration_values(request, services, row)
    )


@router.post(f"{STORE_PAGE}/plan")
def plan_migration(
    request: Request, name: PathName, services: Svc, context: WriteContext, form: Form
) -> Response:
    """Plans a migration, and shows it on the store's page. Raises as `plan.plan_migration`."""
    target, _, anchor_set = text_of(form, "target").partition("@")
    # Not validated, so that unknown names are answered as what is not found.
    wanted = NewMigration.model_construct(
        store=name,
        target=target,
        fill="translate" if anchor_set else "embed",
        anchor_set=anchor_set or None,
        **_limits(form),
    )
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
        steps.refuse_unverified(move.row, call)
    with services.db.transaction() as session:
        names = aliases_of(session, move.row.store)
    return render(
        request,
        "store_step.html",
        move=move,
        call=call,
        words=_calls(move.row.store)[call],
        names=names,
        meanwhile=SWITCHES.get(move.row.store.kind, ""),
        store=name,
    )


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
    move = _active(services, context.project, name)
    id_ = move.row.id
    if text_of(form, "migration") != id_:
        raise Conflict("The store has another migration now. Open the store's page again.")
    if call == "run" and (limits := _limits(form)):
        migrations.change_limits(services, context, id_, limits)
    asks_name = call in move.next and _calls(move.row.store)[call].asks_name
    if asks_name and text_of(form, "name") != name:
        raise InvalidRequest(f"Type the name of the store, {name}, to finish.", field="name")
    if call in migrations.ACTIONS:
        migrations.queue_action(services, context, id_, call)
    elif call == "pause":
        migrations.pause(services, context, id_)
    else:
        steps.take_step(services, context, id_, call)
    return redirect(request, f"{CONSOLE}/stores/{name}")


def migration_values(request: Request, services: Services, row: StoreRow) -> dict[str, Any]:
    """Returns what the template `store_migration.html` shows: the migration that made a store what
    it is. One that was abandoned changed nothing.
    """
    moves = migrations.list_migrations(services, row.project, store=row.name)
    kept = (each for each in moves if each.state != MigrationState.abandoned)
    move = next(kept, moves[0] if moves else None)
    with services.db.transaction() as session:
        names = aliases_of(session, row)
        encoders = resources.encoders_but(session, row.project, EncoderKind.external)
        spaces = resources.spaces(session, row.project)
    own = {each.anchor_set_id for each in spaces if each.encoder_id == row.encoder_id}
    left = {row.encoder.name}
    if move is not None and move.state == MigrationState.finished:  # there is no way back
        left |= {move.row.plan["source"], move.row.target.name}
    pairs = [
        {"target": each.encoder.name, "anchor_set": each.anchor_set.name}
        for each in sorted(spaces, key=lambda each: -each.anchor_set.size)
        if each.anchor_set_id in own and each.encoder.name not in left
    ]
    encoder = row.encoder
    if move is not None and move.state == MigrationState.cut_over:
        encoder = move.row.target
    searching = [row.encoder]
    is_interrupted = move is not None and move.is_interrupted
    if move is not None and move.row.ended_at is None and move.state != MigrationState.planned:
        searching = [] if is_interrupted else [move.row.target, row.encoder]
    values = {
        "searchers": [each.name for each in searching if each.modality == "text" and each.model],
        "move": move,
        "is_interrupted": is_interrupted,
        "active": move is not None and move.row.ended_at is None,
        "later": moves[0] if moves and moves[0] != move else None,
        "encoder": encoder,
        "first": None,
        "others": [],
        "states": wording.MIGRATION_STATES,
        "names": names,
        "targets": [each.name for each in encoders if each.id != row.encoder_id],
        "pairs": pairs,
        "may_write": request.state.context.may(Scope.write),
    }
    if move is None:
        return values
    calls, first = _calls(row), next_call(move)
    return {
        **values,
        "said": wording.say_state(move),
        "problem": wording.say_problem(move),
        "first": first,
        "others": [each for each in wording.OTHER_CALLS if each in move.next and each != first],
        "calls": calls,
        "labels": {call: wording.button_of(calls[call], move.state) for call in calls},
    }


def cost_to_embed(services: Services, row: StoreRow, target: str) -> dict[str, Any]:
    """Returns the price and the seconds that the last plan to embed by the target has measured."""
    for move in migrations.list_migrations(services, row.project, store=row.name):
        if (move.row.plan["fill"], move.row.plan["target"]) == ("embed", target):
            return {name: move.row.plan["cost"][name] for name in ("price", "seconds")}
    return {}


def _limits(form: dict[str, list[str]]) -> dict[str, Any]:
    """Returns the limits that a form has; an empty field is none. Raises InvalidRequest."""
    found: dict[str, float | None] = {}
    for field in (each for each in ("price_per_million_tokens", "max_price") if each in form):
        try:
            found[field] = float(text_of(form, field)) if text_of(form, field) else None
        except ValueError:
            raise InvalidRequest(f"`{field}` must be a number, as 0.02.", field=field) from None
    return validate(MigrationLimits, found).model_dump(include=set(found))


def _calls(store: StoreRow) -> dict[str, wording.CallWords]:
    """Returns the calls that a migration of this store has, with their words."""
    if has_cutover(store.kind):
        return wording.CALLS
    return {**wording.CALLS, "run": wording.RUN_EMBEDDED, "finish": wording.FINISH_EMBEDDED}


def _active(services: Services, project: str, name: str) -> migrations.MigrationStatus:
    """Returns the store's migration. Raises NotFound."""
    stores.find_store(services, project, name)
    for move in migrations.list_migrations(services, project, store=name, limit=1):
        if move.row.ended_at is None:
            return move
    raise NotFound(f"No migration of the store {name!r} is under way. Plan one.", "migration")
