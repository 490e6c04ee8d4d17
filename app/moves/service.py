"""Migrations: look-ups, the calls that are possible now, and the jobs of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy.orm import Session

from app.access.audit import record_audit
from app.context import RequestContext, Services
from app.db import tables
from app.errors import MigrationActive, MissingField, WrongState
from app.jobs import queries as job_queries
from app.jobs.submission import submit_job
from app.moves import queries
from app.moves.lease import change
from app.moves.price import price_of_all, with_limits
from app.stores.registry import EMBEDDED, has_cutover
from app.types import JobKind, JobState, MigrationState

#: how rows get new vectors
Fill = Literal["embed", "translate"]

NextCall = Literal["run", "pause", "verify", "sync", "cutover", "rollback", "finish", "abandon"]

_BEFORE_FILLED = (MigrationState.planned, MigrationState.running, MigrationState.paused)
_FILLED = (MigrationState.filled, MigrationState.cut_over, MigrationState.rolled_back)

#: the calls, the most likely first, and the states from which each begins
CALL_STATES: dict[str, tuple[MigrationState, ...]] = {
    "run": (*_BEFORE_FILLED, MigrationState.filled),
    "verify": _FILLED,
    "cutover": (MigrationState.filled, MigrationState.rolled_back),
    "rollback": (MigrationState.cut_over,),
    "finish": (MigrationState.cut_over,),
    "sync": _FILLED,
    "abandon": (*_BEFORE_FILLED, MigrationState.filled, MigrationState.rolled_back),
}

#: the calls that queue a job
ACTIONS = ("run", "verify", "sync")

#: what the position counts beside rows
COUNTED = ("encoded", "skipped", "applied", "tokens", "truncated")

#: the calls that only a store with a cutover has
CUTOVER_CALLS = ("sync", "cutover", "rollback")


@dataclass(frozen=True)
class MigrationStatus:
    """A migration with its last job, if that still exists."""

    row: tables.MigrationRow
    job: tables.JobRow | None

    @property
    def is_busy(self) -> bool:
        """Return whether its job waits or runs."""
        return self.job is not None and self.job.finished_at is None

    @property
    def state(self) -> MigrationState:
        """Return the state: `running` while the job of a run is unfinished."""
        if self.job is not None and self.is_busy and self.job.arguments["action"] == "run":
            return MigrationState.running
        return MigrationState(self.row.state)

    @property
    def is_interrupted(self) -> bool:
        """Return whether a step must be called again to complete it."""
        return queries.STEP in self.row.position and not self.is_busy

    @property
    def next(self) -> list[str]:
        """Return the calls that are possible now, the most likely first."""
        calls, failed = next_calls(self.row, busy=self.is_busy), None
        if self.job and self.error and self.row.state == MigrationState.filled:
            failed = self.job.arguments["action"]
        return sorted(calls, key=lambda call: call != failed)

    @property
    def error(self) -> dict[str, Any] | None:
        """Return the problem that stopped it, or its job, unless a switch has succeeded since."""
        job, found = self.job, self.row.found
        if self.row.error is not None or job is None or job.state == JobState.succeeded:
            return self.row.error
        since = max(found.get(step, {}).get("at", "") for step in ("cutover", "rollback"))
        return job.error if (job.finished_at or tables.now()).isoformat() > since else None

    @property
    def progress(self) -> dict[str, Any]:
        """Return rows, of, rows_per_second, eta_s and phase, and what else the job reports."""
        facts = dict(self.job.progress) if self.is_busy and self.job is not None else {}
        position = self.row.position
        total = position.get("total") or self.row.plan.get("rows")
        # The job counts what it has embedded and not yet written; it is older than the position.
        rows = max(embedded_rows(position, 0), min(facts.get("done", 0), total or 0))
        counts = {name: position.get(name, 0) for name in COUNTED}
        price = self.row.plan["limits"]["price_per_million_tokens"]
        # Clients see vectors that a switch has translated until their texts are embedded.
        is_settling = position.get(queries.WINDOW, {}).get("until", 0) > 0
        return {
            **counts,
            "spent": None if price is None else counts["tokens"] * price / 1e6,
            "price_of_all": price_of_all(self.row),
            "rows_per_second": None,
            "eta_s": None,
            **{name: value for name, value in facts.items() if name not in ("done", "total")},
            "phase": facts.get("phase") or ("settling" if is_settling else position.get("phase")),
            "rows": rows,
            "total": max(rows, total or 0),  # clients add rows during a run
        }


def embedded_rows(position: Mapping[str, Any], ahead: int) -> int:
    """Return the rows that were swept, `ahead` of them, and the anchors, which lie everywhere."""
    rows, total = int(position.get("rows", 0)) + ahead, position.get("total") or 0
    if position.get("phase") != "sweep" or rows >= total:
        return rows
    return rows + int(position.get("anchors", 0) * (1 - rows / total) + 0.5)


def find_migration(services: Services, project: str, migration_id: str) -> MigrationStatus:
    """Return a migration of the project. Raises NotFound."""
    with services.db.transaction() as session:
        row = queries.migration(session, project, migration_id)
        return _with_job(session, row)


def list_migrations(
    services: Services,
    project: str,
    *,
    store: str | None = None,
    before: datetime | None = None,
    limit: int = 100,
) -> Sequence[MigrationStatus]:
    """Return the project's migrations, the newest first."""
    with services.db.transaction() as session:
        rows = queries.migrations(session, project, store=store, before=before, limit=limit)
        return [_with_job(session, row) for row in rows]


def queue_action(
    services: Services, context: RequestContext, migration_id: str, action: str
) -> tables.JobRow:
    """Queue a job of a migration: `run`, `verify` or `sync`.

    Raises NotFound, WrongState, MigrationActive, TooManyJobs and QueueFull.
    """
    changes: dict[str, Any] = {"error": None}
    if action == "run":
        changes["state"] = MigrationState.running

    def begin(session: Session, job: tables.JobRow) -> None:
        row = _locked(session, context, migration_id, action)
        change(session, row, **changes, job_id=job.id)
        record_audit(session, context, action, "migration", migration_id)

    arguments = {"migration": migration_id, "action": action}
    return submit_job(services, context, JobKind.migrate, arguments, begin=begin)


def change_limits(
    services: Services, context: RequestContext, migration_id: str, limits: Mapping[str, Any]
) -> MigrationStatus:
    """Change some limits of a migration that does not run, and what the plan says of them.

    Raises NotFound, WrongState, MigrationActive and MissingField.
    """
    with services.db.transaction() as session:
        row = _locked(session, context, migration_id, "run")
        changed = {**row.plan["limits"], **limits}
        require_price(changed)
        change(session, row, plan=with_limits(row.plan, changed, row.target))
        record_audit(session, context, "change", "migration", migration_id)
    return find_migration(services, context.project, migration_id)


def _locked(
    session: Session, context: RequestContext, migration_id: str, call: str
) -> tables.MigrationRow:
    """Return a migration for which a call is possible, until the transaction ends.

    A synchronisation writes the row again and again. Raises as `refuse_unless_possible`.
    """
    row = queries.migration(session, context.project, migration_id, lock=True)
    refuse_unless_possible(row, call, busy=queries.unfinished_job(session, row) is not None)
    return row


def require_price(limits: Mapping[str, Any]) -> None:
    """Raises MissingField for a `max_price` without a price of tokens."""
    if limits["max_price"] is not None and limits["price_per_million_tokens"] is None:
        raise MissingField(
            "`max_price` needs the price of tokens. Add `price_per_million_tokens`.",
            field="price_per_million_tokens",
        )


def pause(services: Services, context: RequestContext, migration_id: str) -> MigrationStatus:
    """Ask the run to stop between two batches; one that still waits stops at once.

    Raises NotFound and WrongState.
    """
    with services.db.transaction() as session:
        row = queries.migration(session, context.project, migration_id, lock=True)
        if row.state == MigrationState.paused:
            return _with_job(session, row)
        if row.state != MigrationState.running:
            raise wrong_state(row, "pause", busy=False)
        job = queries.unfinished_job(session, row)
        if job is not None:
            job_queries.cancel(session, job.id, now=tables.now())
            session.expire(job)
        if queries.unfinished_job(session, row) is None:
            change(session, row, state=MigrationState.paused)
        record_audit(session, context, "pause", "migration", migration_id)
    return find_migration(services, context.project, migration_id)


def hand_over(row: tables.MigrationRow) -> str:
    """Return the call that gives clients the new vectors: `cutover`, else `finish`."""
    return "cutover" if has_cutover(row.store.kind) else "finish"


def possible_calls(row: tables.MigrationRow, *, busy: bool) -> list[str]:
    """Return the calls that are possible now, the most likely first."""
    state = MigrationState(row.state)
    if row.ended_at is not None:
        return []
    if step := row.position.get(queries.STEP):
        return [] if busy else [step]
    if busy:
        return ["pause"] if state == MigrationState.running else []
    calls = CALL_STATES
    if not has_cutover(row.store.kind):
        calls = {name: each for name, each in calls.items() if name not in CUTOVER_CALLS}
        calls["finish"] = (MigrationState.filled,)
    return [name for name, states in calls.items() if state in states]


def next_calls(row: tables.MigrationRow, *, busy: bool) -> list[str]:
    """Return the calls that are possible now, the most likely first and `abandon` last.

    `hand_over` and `finish` need a `verify` that passed, which is not repeated before them.
    """
    calls = possible_calls(row, busy=busy)
    if queries.STEP in row.position:
        return calls
    found = row.found.get("verify", {})
    passed, again = bool(found.get("passed")), found.get("payloads", {}).get("again")
    if not passed:
        calls = [each for each in calls if each not in (hand_over(row), "finish")]
    is_filled = row.state == MigrationState.filled
    later = {"abandon": 3, "verify": 2 * passed, "run": -1 if again else is_filled}
    return sorted(calls, key=lambda call: later.get(call, 0))


def refuse_unless_possible(row: tables.MigrationRow, call: str, *, busy: bool) -> None:
    """Raises MigrationActive while a job is unfinished, and WrongState."""
    if busy and row.ended_at is None:
        pausable = row.state == MigrationState.running
        advice = "Wait until it ends" + (", or pause it." if pausable else ".")
        raise MigrationActive(
            f"Job {row.job_id} works on this migration. {advice}",
            retry_after_s=5,
        )
    if call not in possible_calls(row, busy=busy):
        raise wrong_state(row, call, busy=busy)


def wrong_state(row: tables.MigrationRow, call: str, *, busy: bool) -> WrongState:
    """Return the error that names the next call."""
    if call in CUTOVER_CALLS and not has_cutover(row.store.kind):
        place = EMBEDDED[row.store.kind]
        return WrongState(
            f"A store of kind {row.store.kind!r} has no `{call}`: open the new {place} in your "
            "application once the migration is filled and verified, then call `finish`."
        )
    calls = next_calls(row, busy=busy)
    advice = f" Call `{calls[0]}`." if calls else " It has ended: plan another."
    if row.state == MigrationState.cut_over:
        advice = " It is cut over: `rollback` undoes that, and `finish` deletes the old vectors."
    if call == "rollback" and row.state != MigrationState.finished:
        advice = " Nothing is cut over: clients see the old vectors."
    elif call == "rollback":
        advice = (
            " The old vectors are deleted. Restore a backup, disconnect the store, and connect it "
            "again by the old encoder."
        )
    if step := row.position.get(queries.STEP):
        return WrongState(
            f"`{step}` of this migration was interrupted. Call `{step}` again before `{call}`."
        )
    return WrongState(f"The migration is {row.state}, so this is not possible.{advice}")


def _with_job(session: Session, row: tables.MigrationRow) -> MigrationStatus:
    """Return the migration. The state is `paused` once its run has ended without the worker.

    The queue ends a job by itself: one that was cancelled between two attempts, or whose workers
    were lost too often.
    """
    job = None
    if row.job_id is not None:
        job = session.get(tables.JobRow, row.job_id, populate_existing=True)
    if job is not None and job.finished_at is not None and row.ended_at is None:
        session.refresh(row)  # the job may have ended after the row was read
        if row.state == MigrationState.running:
            change(session, row, state=MigrationState.paused)
            session.refresh(row)
    return MigrationStatus(row, job)
