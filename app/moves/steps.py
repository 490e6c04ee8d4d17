"""The steps of a migration that a request waits for: cutover, rollback, finish and abandon.

Before a step changes the store, the row names it; after it, the row has the next state. A process
that is killed in between leaves the name, so that nothing else touches the store until the same
step is called again. A step that certainly changed nothing removes it. Every step of a store can
be repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy import update
from sqlalchemy.orm import Session

from app.access.audit import record_audit
from app.context import RequestContext, Services
from app.db import tables
from app.db.session import changed_rows
from app.errors import (
    AnchorageError,
    EncoderFailed,
    EncoderUnavailable,
    NotVerified,
    OldSizeTrigger,
    StoreUnavailable,
    Unavailable,
)
from app.moves import queries, service
from app.moves.context import MigrationContext, open_migration, without_url
from app.moves.lease import LEASE_S, Lease, take_lease
from app.moves.queries import STEP, TRANSLATED_BACK, WINDOW
from app.moves.service import MigrationStatus, find_migration, hand_over, refuse_unless_possible
from app.moves.sync import drain_held, logging_errors
from app.stores.port import OLD_SIZE, StoreId, StoreVectors
from app.stores.registry import has_cutover
from app.types import MigrationState

#: how long a step waits for a synchronisation, or for the lease of a lost process
STEP_WAIT_S = LEASE_S + 5.0

#: how long after a switch a client may still write vectors of the other encoder
WINDOW_S = 1.5

#: errors of the last changes that do not stop the way back
PASSED_OVER = {"rollback": (EncoderFailed, EncoderUnavailable), "abandon": (AnchorageError,)}

#: the state after each step
AFTER = {
    "cutover": MigrationState.cut_over,
    "rollback": MigrationState.rolled_back,
    "finish": MigrationState.finished,
    "abandon": MigrationState.abandoned,
}


def take_step(
    services: Services,
    context: RequestContext,
    migration_id: str,
    step: str,
    *,
    force: bool = False,
) -> MigrationStatus:
    """Take a step of the store and of the row, which a repeated call completes.

    force  of a cutover: although a trigger of the table names vectors of the old size

    A rollback keeps the new vectors. After `finish`, the store belongs to the target encoder; where
    the application opens the new vectors itself, both stay, and so does the encoder.
    Raises NotFound, WrongState, MigrationActive, NotVerified, OldSizeTrigger, Overloaded and the
    store's errors.
    """
    found = find_migration(services, context.project, migration_id)
    refuse_unless_possible(found.row, step, busy=found.is_busy)
    with (
        services.take(services.turns.steps, context.project),
        take_lease(services, migration_id, wait_s=STEP_WAIT_S) as held,
        without_url(services, held.row),
    ):
        found = find_migration(services, context.project, migration_id)
        refuse_unless_possible(found.row, step, busy=found.is_busy)
        if step in (hand_over(held.row), "finish"):
            refuse_unverified(held.row, step)
        move = open_migration(services, held.row)
        if step == "cutover" and not force and STEP not in held.position:
            refuse_old_size(move)
        window = held.position.get(WINDOW)
        if window is not None:
            left = window["until"] - time.time()  # of the clock of another machine, perhaps
            time.sleep(min(max(0.0, left), WINDOW_S))
        if STEP not in held.position and (window or step in ("cutover", "rollback")):
            # Most changes are applied before the store locks anything.
            with suppress(*PASSED_OVER.get(step, ())):
                drain_held(move, held)
            if step == "finish" and WINDOW in held.position:
                raise StoreUnavailable(
                    "Clients write faster than their texts are embedded, or hold rows in open "
                    "transactions. End these, and try again in a minute."
                )
        resumes = STEP in held.position  # the pause began in a process that is gone
        held.save(unchanged=found.row, position={**held.position, STEP: step})
        try:
            news = _change_store(move, held, step)
            news = {name: {"pause_s": None} for name in news} if resumes else news
        except AnchorageError as error:
            # An unavailable store may have done it, or not, unless its error excludes it.
            if not isinstance(error, Unavailable) or is_unchanged(error):
                held.save(position=_without_step(held))
            raise
        _record(context, held, step, news)
    services.names.forget()
    if step == "finish":  # the store may remember what it was
        services.stores.forget(services.stores.location(found.row.store))
    return find_migration(services, context.project, migration_id)


def _change_store(move: MigrationContext, held: Lease, step: str) -> dict[str, Any]:
    """Take the step of the store, and return what was found, for the row.

    Rows that a switch translates are remembered before it is done: they are embedded after it.
    """

    def translate(ids: Sequence[StoreId], vectors: StoreVectors) -> StoreVectors:
        if move.embedder is not None:
            known = held.position.get(WINDOW, {"ids": [], "until": 0.0})
            merged = list(dict.fromkeys([*known["ids"], *ids]))
            held.save(position={**held.position, WINDOW: {**known, "ids": merged}})
        return move.carry(ids, vectors, back=step == "rollback").vectors  # at once: writes wait

    if step == "cutover":
        return {step: {"pause_s": move.live.cutover(translate)}}
    if step == "rollback":
        return {step: {"pause_s": move.live.rollback(translate)}}
    if step == "finish":
        move.migration.finish()
    else:
        move.migration.abandon()
    return {}


def _record(context: RequestContext, held: Lease, step: str, news: dict[str, Any]) -> None:
    """Write the row's next state, what was found, the store's encoder, and the audit row."""
    at = tables.now()
    dated = {name: {**each, "at": at.isoformat()} for name, each in news.items()}
    row = held.row

    def write(session: Session) -> None:
        if step == "finish" and has_cutover(row.store.kind):
            owner = tables.StoreRow.id == row.store_id
            statement = update(tables.StoreRow).where(owner)
            changed_rows(session, statement.values(encoder_id=row.target_id))
        record_audit(session, context, step, "migration", row.id)

    position = _without_step(held)
    if news and row.plan.get("fill") == "embed":
        ids = [*position.get(WINDOW, {}).get("ids", []), *position.pop(TRANSLATED_BACK, [])]
        position[WINDOW] = {"ids": ids, "until": time.time() + WINDOW_S}
    held.save(
        within=write,
        state=AFTER[step],
        position=position,
        found={**row.found, **dated},
        error=None,
        ended_at=at if step in ("finish", "abandon") else None,
    )


def complete_switches(services: Services, *, stopping: Callable[[], bool]) -> None:
    """Complete the switches of killed processes where clients find neither side meanwhile."""
    with services.db.transaction() as session:
        rows = queries.idle_in(session, service.CALL_STATES["sync"])
    for row in rows:
        step = row.position.get(STEP)
        if stopping() or step not in ("cutover", "rollback"):
            continue
        with logging_errors(services, row, f"complete the {step} of migration %s"):
            store = services.stores.open(services.stores.location(row.store))
            if not store.capabilities.atomic_cutover:
                with take_lease(services, row.id):  # raises while another process works on it
                    pass
                take_step(services, RequestContext(row.project), row.id, step)


def is_unchanged(error: AnchorageError) -> bool:
    """Return whether the error says that the store is as before the step."""
    return isinstance(error, StoreUnavailable) and error.is_unchanged


def _without_step(held: Lease) -> dict[str, Any]:
    return {name: each for name, each in held.position.items() if name != STEP}


def refuse_unverified(row: tables.MigrationRow, step: str) -> None:
    """Raises NotVerified unless `verify` has passed since the last run."""
    found = row.found.get("verify")
    estimated = {"index_recall": row.plan.get("min_recall"), **(row.plan.get("estimate") or {})}
    if found is None:
        raise NotVerified(
            f"The migration was not verified since its last run. Call `verify`, and "
            f"`{step}` once it has passed.",
            more={"found": None, "estimated": estimated},
        )
    if not found["passed"]:
        checks = ("rows", "payloads", "sample", "index")
        failed = [found[name]["detail"] for name in checks if found[name]["passed"] is False]
        raise NotVerified(
            f"The last `verify` did not pass, so `{step}` waits. {' '.join(failed)}",
            more={"found": found, "estimated": estimated},
        )


def refuse_old_size(move: MigrationContext) -> None:
    """Raises OldSizeTrigger where writes of clients would fail after a cutover."""
    notes = [each.detail for each in move.store.facts().notes if each.code == OLD_SIZE]
    if notes and move.dims[0] != move.dims[1]:
        raise OldSizeTrigger(
            f"{' '.join(notes)} Disable the trigger, and change its function right after the "
            "cutover. Or send `force: true` to cut over all the same."
        )
