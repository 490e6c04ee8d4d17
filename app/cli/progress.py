"""Begins a job of a migration, and follows it with a progress bar."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from app.cli.service import ENDED, LOOK_S, Refused, Service, at


def complete_action(service: Service, migration_id: str, action: str) -> dict[str, Any]:
    """Begin an action, or find its unfinished job, and return the migration once it has ended.

    A Ctrl-C pauses a run and cancels another action, and is raised again once the job has stopped.
    """
    where = at("migrations", migration_id)
    job = service.get(where)["job"]
    if job is None or job["action"] != action or job["state"] in ENDED:
        job = service.post_nothing(f"{where}/{action}")
    try:
        return _follow(service, where, job["id"])
    except KeyboardInterrupt:
        _stop(service, where, job["id"])
        raise


def _stop(service: Service, where: str, job_id: str) -> None:
    """Pause a run, or cancel another job, and wait until it has stopped."""
    try:
        service.post_nothing(f"{where}/pause")
    except Refused:  # it is no run, or it has just ended
        try:
            service.post_nothing(at("jobs", job_id, "cancel"))
        except Refused:
            return
    while service.get(at("jobs", job_id))["state"] not in ENDED:
        time.sleep(LOOK_S)


def _follow(service: Service, where: str, job_id: str) -> dict[str, Any]:
    """Draw the progress until the job has ended, and return the migration."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} rows{task.fields[pace]}"),
        console=Console(stderr=True),
    )
    with bar:
        task = bar.add_task("waiting", total=1, pace="")
        while True:
            found: dict[str, Any] = service.get(where)
            facts, job = found["progress"], found["job"]
            if job is None or job["id"] != job_id or job["state"] in ENDED:
                return found
            pace = f"{facts['rows_per_second']:,.0f} rows/s" if facts["rows_per_second"] else ""
            left = f"{facts['eta_s']:,.0f} s left" if facts["eta_s"] is not None else ""
            bar.update(
                task,
                description=str(facts["phase"] or "waiting"),
                completed=facts["rows"],
                total=max(facts["total"] or 1, facts["rows"], 1),
                pace="".join(f", {each}" for each in (pace, left) if each),
            )
            time.sleep(LOOK_S)
