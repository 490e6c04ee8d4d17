"""The threads of a worker: they wake, clean up and stop."""

from __future__ import annotations

import threading
from datetime import timedelta

from sqlalchemy import select

from app.db import tables
from app.jobs import submission
from app.jobs.worker import JobResult
from app.types import JobState
from tests.jobs.helpers import encoder, encoders
from tests.waiting import until
from tests.workers.conftest import CONTEXT, PROJECT
from workers import main as worker_main
from workers.main import RUNNERS


def test_a_job_of_the_same_process_wakes_an_idle_thread(deployment, monkeypatch):
    monkeypatch.setattr(worker_main, "IDLE_POLL_S", 3600)
    monkeypatch.setitem(RUNNERS, "quick", lambda *_: JobResult({}))
    worker = deployment.worker()
    worker.start()
    for _ in range(2):
        job = submission.submit_job(worker.services, CONTEXT, "quick", {})
        assert deployment.ended(job.id).attempts == 1


def test_a_worker_deletes_old_rows(deployment):
    old = tables.now() - timedelta(days=31)
    row = tables.JobRow(project=PROJECT, kind="k", state="succeeded", arguments={}, finished_at=old)
    with deployment.services.db.transaction() as session:
        session.add(row)
    deployment.worker().start()
    with deployment.services.db.engine.connect().execution_options(
        isolation_level="AUTOCOMMIT"
    ) as connection:
        until(lambda: connection.scalar(select(tables.JobRow.id)) is None)


def test_a_stop_hands_back_even_what_is_in_a_long_step_and_its_late_end_has_no_effect(
    deployment, monkeypatch
):
    monkeypatch.setattr(worker_main, "STOP_TIMEOUT_S", 0.2)
    begun, go_on, over = threading.Event(), threading.Event(), threading.Event()

    def work(services, row, progress) -> JobResult:
        begun.set()
        go_on.wait(30)
        threading.Timer(0.5, over.set).start()
        return JobResult({}, write=lambda session: session.add(encoder("late")))

    monkeypatch.setitem(RUNNERS, "stuck", work)
    worker = deployment.worker()
    worker.start()
    job_id = deployment.submit("stuck")
    assert begun.wait(30)
    worker.stop()
    row = deployment.row(job_id)
    assert (row.state, row.attempts) == (JobState.queued, 0)
    go_on.set()
    assert over.wait(30)
    assert deployment.row(job_id).state == JobState.queued
    assert encoders(deployment.services) == []
