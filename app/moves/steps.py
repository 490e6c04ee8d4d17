"""The steps of a migration that a request waits for: cutover, rollback, finish and abandon.

Before a step changes the store, the row names it; after it, the row has the next state. A process
that is killed in between leaves the name, so that nothing else touches the store until the same
step is called again. A step that certainly changed nothing removes it. Every step of a store can
be repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import update
from sqlalchemy.orm import Session

from app.access.audit import record_audit
from app.context import RequestContext, Services
from app.db import tables
from app.db.statements import changed_rows
from app.errors import AnchorageError, BelowEstimate, StoreUnavailable, Unavailable
from app.moves.context import MigrationContext, open_migration, without_url
from app.moves.lease import LEASE_S, Lease, take_lease
from app.moves.queries import STEP
from app.moves.service import (
    MigrationStatus,
    find_migration,
    hand_over,
    refuse_unless_possible,
)
from app.moves.sync import drain_held
from app.stores.registry import has_cutover
from app.types import MigrationState

#: what a step does to the store; it returns what it found
Act = Callable[[MigrationContext, Lease], dict[str, Any]]

#: how long a step waits for a synchronisation, or for the lease of a lost process
STEP_WAIT_S = LEASE_S + 5.0


def cutover(services: Services, context: RequestContext, migration_id: str) -> MigrationStatus:
    """Make clients see the new vectors.

    Raises NotFound, WrongState, MigrationActive, BelowEstimate, Overloaded and the
    store's errors.
    """

    def act(move: MigrationContext, held: Lease) -> dict[str, Any]:
        return {"cutover": {"pause_s": move.live.cutover(move.forward).pause_s}}

    return _take_step(services, context, migration_id, "cutover", MigrationState.cut_over, act)


def rollback(services: Services, context: RequestContext, migration_id: str) -> MigrationStatus:
    """Make clients see the old vectors again. The new ones stay. Raises as `cutover`."""

    def act(move: MigrationContext, held: Lease) -> dict[str, Any]:
        return {"rollback": {"pause_s": move.live.rollback(move.backward).pause_s}}

    return _take_step(services, context, migration_id, "rollback", MigrationState.rolled_back, act)


def finish(services: Services, context: RequestContext, migration_id: str) -> MigrationStatus:
    """Delete the old vectors: the store now belongs to the target encoder. Raises as `cutover`.

    Where the application opens the new vectors itself, both stay, and so does the encoder.
    """

    def act(move: MigrationContext, held: Lease) -> dict[str, Any]:
        move.migration.finish()
        return {}

    return _take_step(services, context, migration_id, "finish", MigrationState.finished, act)


def abandon(services: Services, context: RequestContext, migration_id: str) -> MigrationStatus:
    """Delete the new vectors. Raises as `cutover`."""

    def act(move: MigrationContext, held: Lease) -> dict[str, Any]:
        move.migration.abandon()
        return {}

    return _take_step(services, context, migration_id, "abandon", MigrationState.abandoned, act)


def _take_step(
    services: Services,
    context: RequestContext,
    migration_id: str,
    step: str,
    after: MigrationState,
    act: Act,
) -> MigrationStatus:
    """Take a step of the store and of the row, which a repeated call completes."""
    found = find_migration(services, context.project, migration_id)
    refuse_unless_possible(found.row, step, busy=found.is_busy)
    with (
        services.take(services.turns.steps, context.project),
        take_lease(services, migration_id, wait_s=STEP_WAIT_S) as held,
        without_url(services, held.row),
    ):
        found = find_migration(services, context.project, migration_id)
        refuse_unless_possible(found.row, step, busy=found.is_busy)
        if step == hand_over(held.row):
            refuse_below_estimate(held.row)
        move = open_migration(services, held.row)
        if step in ("cutover", "rollback") and STEP not in held.position:
            # Most changes are applied before the store locks anything.
            drain_held(move, held)
        held.save(unchanged=found.row, position={**held.position, STEP: step})
        try:
            news = act(move, held)
        except AnchorageError as error:
            # An unavailable store may have done it, or not, unless its error excludes it.
            if not isinstance(error, Unavailable) or is_unchanged(error):
                held.save(position=_without_step(held))
            raise
        _record(context, held, step, after, news)
    services.names.forget()
    if after == MigrationState.finished:  # the store may remember what it was
        services.stores.forget(services.stores.location(found.row.store))
    return find_migration(services, context.project, migration_id)


def _record(
    context: RequestContext,
    held: Lease,
    step: str,
    after: MigrationState,
    news: dict[str, Any],
) -> None:
    """Write the row's next state, what was found, the store's encoder, and the audit row."""
    ended = after in (MigrationState.finished, MigrationState.abandoned)
    at = tables.now()
    dated = {name: {**each, "at": at.isoformat()} for name, each in news.items()}
    row = held.row

    def write(session: Session) -> None:
        if after == MigrationState.finished and has_cutover(row.store.kind):
            owner = tables.StoreRow.id == row.store_id
            statement = update(tables.StoreRow).where(owner)
            changed_rows(session, statement.values(encoder_id=row.target_id))
        record_audit(session, context, step, "migration", row.id)

    held.save(
        within=write,
        state=after,
        position=_without_step(held),
        found={**row.found, **dated},
        error=None,
        ended_at=at if ended else None,
    )


def is_unchanged(error: AnchorageError) -> bool:
    """Return whether the error says that the store is as before the step."""
    return isinstance(error, StoreUnavailable) and error.is_unchanged


def _without_step(held: Lease) -> dict[str, Any]:
    return {name: each for name, each in held.position.items() if name != STEP}


def refuse_below_estimate(row: tables.MigrationRow) -> None:
    """Raises BelowEstimate unless `verify` has passed since the last run."""
    found = row.found.get("verify")
    estimated = {"index_recall": row.plan.get("min_recall"), **(row.plan.get("estimate") or {})}
    if found is None:
        raise BelowEstimate(
            f"The migration was not verified since its last run. Call `verify`, and "
            f"`{hand_over(row)}` once it has passed.",
            more={"found": None, "estimated": estimated},
        )
    if not found["passed"]:
        checks = ("rows", "payloads", "sample", "index")
        failed = [found[name]["detail"] for name in checks if found[name]["passed"] is False]
        raise BelowEstimate(
            f"The last `verify` did not pass. {' '.join(failed)}",
            more={"found": found, "estimated": estimated},
        )
