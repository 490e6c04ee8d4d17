"""Writes of clients to the store reach the other side, from `filled` until `finish`.

Before a cutover their texts are embedded, or their old vectors translated, as the plan says. After
it the old encoder embeds the texts, or the new vectors are translated back, so that a rollback
stays possible for weeks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from app.context import Services
from app.db import tables
from app.errors import AnchorageError, DatabaseUnavailable, MigrationActive, Unavailable
from app.jobs.progress import Progress
from app.jobs.worker import JobResult, problem_of
from app.moves import queries
from app.moves.context import (
    FEW_CHANGES,
    MigrationContext,
    is_after_cutover,
    open_migration,
    without_url,
)
from app.moves.lease import Lease, take_lease
from app.moves.queries import TRANSLATED_BACK, WINDOW
from app.moves.service import CALL_STATES
from app.ops.devices import is_device_failure

log = logging.getLogger("anchorage.migration")

#: longest time that a worker spends on one migration in one round
ROUND_S = 2.0

#: most of a worker's time that looking for changes of one migration takes: stores without
#: triggers compare all rows
SYNC_SHARE = 0.05


def sync_all(
    services: Services,
    *,
    due: dict[str, float] | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> int:
    """Apply the waiting changes of every migration without a job, and return their number.

    due  when each migration is next looked at, by its id: slow stores are looked at rarely
    Errors of one migration are logged, and delay no other: those of a store are also recorded in
    its row. Raises DatabaseUnavailable, and the error of a device that failed.
    """
    due = {} if due is None else due
    with services.db.transaction() as session:
        rows = queries.idle_in(session, CALL_STATES["sync"])
    total = 0
    for row in rows:
        if stopping():
            break
        begun, looked = time.monotonic(), None
        if begun < due.get(row.id, begun) or row.position.get(queries.STEP):
            continue
        with logging_errors(services, row, "synchronise migration %s"):
            store = services.stores.open(services.stores.location(row.store))
            window, is_quick = row.position.get(WINDOW), store.capabilities.captures_writes
            # Others compare all rows: `sync` and a step do, and this once a switch is over.
            if not is_quick and (window is None or time.time() < window["until"]):
                continue
            move = open_migration(services, row)
            has_changes = window is not None or move.live.changes(1)
            looked = time.monotonic() if is_quick else None
            if has_changes:
                total += _sync_idle(services, move, stopping)
        now = time.monotonic()
        due[row.id] = now + ((looked or now) - begun) * (1 / SYNC_SHARE - 1)
    return total


@contextmanager
def logging_errors(services: Services, row: tables.MigrationRow, what: str) -> Iterator[None]:
    """Log the errors of one migration: the rows after it still have their turn."""
    try:
        with without_url(services, row):
            yield
    except DatabaseUnavailable:
        raise
    except MigrationActive:
        log.debug("another process works on migration %s", row.id)
    except AnchorageError as error:
        log.warning(f"cannot {what}: %s", row.id, error.detail)
    except Exception as error:
        if is_device_failure(error):
            raise
        log.exception(f"cannot {what}", row.id)


def _sync_idle(services: Services, move: MigrationContext, stopping: Callable[[], bool]) -> int:
    with take_lease(services, move.row.id) as held:
        if held.row.state not in CALL_STATES["sync"] or held.row.position.get(queries.STEP):
            return 0
        ends = time.monotonic() + ROUND_S
        return drain_held(move, held, stop=lambda count: stopping() or time.monotonic() >= ends)


def run_sync(services: Services, held: Lease, progress: Progress) -> JobResult:
    """Apply all changes that wait now. Raises the errors of the store, and those of Progress."""
    move = open_migration(services, held.row)
    applied = 0

    def report(count: int) -> bool:
        nonlocal applied
        applied += count
        progress(applied, applied + 1, {"phase": "sync"})
        return False

    return JobResult({"applied": drain_held(move, held, stop=report)})


def drain_held(
    move: MigrationContext, held: Lease, *, stop: Callable[[int], bool] = lambda count: False
) -> int:
    """Apply waiting changes under a lease, count them in the row, and return their number.

    `stop` hears the number of each batch, and says whether it was the last. An error that waiting
    does not help is recorded in the row until a later call applies changes.
    """
    applied = 0
    news: dict[str, Any] = {"error": None}
    window, after_cutover = held.position.get(WINDOW), is_after_cutover(held.row)
    is_over = window is not None and time.time() >= window["until"]
    switched = window is not None and window["until"] > 0
    settled = False
    try:
        if window is not None and is_over:
            move.settle(window["ids"], after_cutover=after_cutover, switched=switched)
        count = 0
        for count in move.drain(after_cutover=after_cutover, switched=switched):
            applied += count
            if stop(count):
                break
        # Else some of the window may still wait.
        settled = is_over and count < FEW_CHANGES and not move.owed
    except Unavailable:
        raise
    except AnchorageError as error:
        news["error"] = problem_of(error)
        raise
    finally:
        if applied or news["error"] or settled or move.owed:
            move.usage.add(applied=applied)
            position = move.usage.add_to(held.position)
            if settled:
                ids = position.pop(WINDOW)["ids"]
                if after_cutover and not switched:
                    position[TRANSLATED_BACK] = ids
            elif move.owed and window is not None:
                position[WINDOW] = {**window, "ids": [*{*window["ids"], *move.owed}]}
            held.save(position=position, **news)
    return applied
