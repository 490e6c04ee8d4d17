"""What the tests of jobs do again and again."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import torch
from sqlalchemy import select

from app.context import Services
from app.db import tables
from app.jobs import progress
from app.jobs import worker as runner
from app.jobs.worker import JobResult, Leases
from app.types import JobKind, JobState
from tests.helpers import PROJECT, again, alter

LONG_AGO = timedelta(hours=-1)


#: each turn takes the job that a test means: nothing else has been due for as long
_days_due = itertools.count(1)


def run(
    services: Services,
    job: tables.JobRow,
    work: runner.JobRunner,
    leases: Leases | None = None,
    **more: Any,
) -> tables.JobRow:
    """A worker's turn with the job, however long the pause before its next try is."""
    alter(services, job, due_at=tables.now() - timedelta(days=next(_days_due)))
    turn(services, work, leases, **more)
    return again(services, job)


def turn(
    services: Services, work: runner.JobRunner, leases: Leases | None = None, **more: Any
) -> bool:
    """A worker's turn with whatever is due; returns whether there was a job."""
    return runner.run_next(services, {JobKind.bootstrap: work}, leases or Leases(services), **more)


def well(services: Services, row: tables.JobRow, progress: progress.Progress) -> JobResult:
    return JobResult({"answer": row.arguments["x"]})


def never(services: Services, row: tables.JobRow, progress: progress.Progress) -> JobResult:
    raise AssertionError("this job should not have been run")


def failing(error: Exception) -> runner.JobRunner:
    def fail(services: Services, row: tables.JobRow, progress: progress.Progress) -> JobResult:
        raise error

    return fail


def encoder(name: str) -> tables.EncoderRow:
    return tables.EncoderRow(project=PROJECT, name=name, kind="external", dim=2, modality="text")


def encoders(services: Services) -> list[str]:
    with services.db.transaction() as session:
        return list(session.scalars(select(tables.EncoderRow.name)))


def lose(services: Services, job: tables.JobRow) -> None:
    """Leave the job as a worker does that claimed it and was killed, once its lease has ended."""
    attempts = again(services, job).attempts + 1
    ended = {"lease": tables.new_id(), "lease_until": tables.now() + LONG_AGO}
    alter(services, job, state=JobState.running, attempts=attempts, **ended)


def at(step: int) -> dict[str, torch.Tensor]:
    return {"step": torch.tensor(step)}


def step_of(state: dict[str, torch.Tensor] | None) -> int | None:
    return None if state is None else int(state["step"])


def going(services: Services, job: tables.JobRow, *steps: int) -> int | None:
    """A worker's turn that keeps these steps and is killed then; returns the step from which it
    went on.
    """
    found = []

    def work(services: Services, row: tables.JobRow, progress: progress.Progress) -> JobResult:
        found.append(step_of(progress.resume()))
        for step in steps:
            progress.checkpoint(step, at(step))
        alter(services, row, lease_until=tables.now() + LONG_AGO)
        raise KeyboardInterrupt  # like a killed process: nothing is recorded

    with pytest.raises(KeyboardInterrupt):
        run(services, job, work)
    return found[0]


def taken_over(
    services: Services, job: tables.JobRow, first: runner.JobRunner, second: runner.JobRunner
) -> tables.JobRow:
    """`first` runs under a lease that has ended already; while it runs, another worker takes the
    job over by `second`.
    """
    silent = replace(services, lease_s=-1.0)

    def slow(services: Services, row: tables.JobRow, progress: progress.Progress) -> JobResult:
        run(services, job, second)
        return first(services, row, progress)

    return run(silent, job, slow)
