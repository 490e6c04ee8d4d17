"""Runs a job of a migration in this process, with a progress bar, or follows its worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from app.errors import AnchorageError

if TYPE_CHECKING:
    from app.services.context import Services
    from app.services.request_context import RequestContext
    from app.services.store_migrations.records import MigrationStatus

#: how often the bar is drawn from the database, and a job that a worker has is tried again
LOOK_S = 0.25


def complete_action(
    services: Services, context: RequestContext, migration_id: str, action: str
) -> MigrationStatus:
    """Queue an action, or find its unfinished job, and return the migration once it has ended.

    This process claims the job unless a worker has it. A Ctrl-C pauses a run and cancels another
    action, and is raised again once the job has stopped.
    Raises the errors of `queue_action`.
    """
    from app.services.store_migrations import records

    found = records.find_migration(services, context.project, migration_id)
    job = found.job if found.is_busy else None
    if job is None or job.arguments.get("action") != action:
        job = records.queue_action(services, context, migration_id, action)
    with _working(services, job.id) as ended:
        try:
            _show(services, context, migration_id, ended)
        except KeyboardInterrupt:
            _stop(services, context, migration_id, job.id)
            ended.wait()
            raise
    return records.find_migration(services, context.project, migration_id)


@contextmanager
def _working(services: Services, job_id: str) -> Iterator[threading.Event]:
    """Work on one job in a thread. Yields an event that is set when the job has ended."""
    from app.services.jobs.leases import Leases
    from workers.main import RENEW_S, RENEWALS, Periodic

    leases, ended, stopping = Leases(services), threading.Event(), threading.Event()
    faults: list[Exception] = []
    every_s = min(RENEW_S, services.lease_s / RENEWALS)
    caretaker = Periodic("renew leases", every_s, leases.renew)
    thread = threading.Thread(
        target=_work, args=(services, leases, job_id, ended, stopping.is_set, faults), name="job"
    )
    caretaker.start()
    thread.start()
    try:
        yield ended
    finally:
        stopping.set()
        thread.join()
        caretaker.stop()
    if faults:
        raise faults[0]


def _work(
    services: Services,
    leases: object,
    job_id: str,
    ended: threading.Event,
    stopping: Callable[[], bool],
    faults: list[Exception],
) -> None:
    from app.errors import DatabaseUnavailable
    from app.services.jobs import runner
    from workers.main import RUNNERS

    try:
        while not stopping():
            try:
                runner.run_next(services, RUNNERS, leases, stopping=stopping, only=job_id)  # type: ignore[arg-type]
                if _has_ended(services, job_id):
                    return
            except DatabaseUnavailable:
                pass  # tried again, as a worker does
            time.sleep(LOOK_S)  # a worker has the job, or it waits for another attempt
    except Exception as error:  # raised again in the thread of the command
        faults.append(error)
    finally:
        ended.set()


def _has_ended(services: Services, job_id: str) -> bool:
    from app.storage import tables

    with services.db.transaction() as session:
        row = session.get(tables.JobRow, job_id)
        return row is None or row.finished_at is not None


def _stop(services: Services, context: RequestContext, migration_id: str, job_id: str) -> None:
    """Pause a run; cancel another job."""
    from app.services.jobs.submission import cancel_job
    from app.services.store_migrations import records

    try:
        records.pause(services, context, migration_id)
    except AnchorageError:  # it is no run, or it has just ended
        try:
            cancel_job(services, context, job_id)
        except AnchorageError:
            return


def _show(
    services: Services, context: RequestContext, migration_id: str, ended: threading.Event
) -> None:
    """Draw the progress until the job has ended."""
    from app.services.store_migrations import records

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} rows{task.fields[pace]}"),
        console=Console(stderr=True),
    )
    with bar:
        task = bar.add_task("waiting", total=1, pace="")
        while not ended.wait(LOOK_S):
            try:
                found = records.find_migration(services, context.project, migration_id)
            except AnchorageError:
                continue
            facts = found.progress
            pace = f"{facts['rows_per_second']:,.0f} rows/s" if facts["rows_per_second"] else ""
            left = f"{facts['eta_s']:,.0f} s left" if facts["eta_s"] is not None else ""
            bar.update(
                task,
                description=str(facts["phase"] or "waiting"),
                completed=facts["rows"],
                total=max(facts["total"] or 1, facts["rows"], 1),
                pace="".join(f", {each}" for each in (pace, left) if each),
            )
