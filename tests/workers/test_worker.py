"""Workers on one Redis and one PostgreSQL: nothing lost, nothing done twice."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from datetime import timedelta

import pytest
from redis import Redis
from sqlalchemy import select

from app.services import jobs
from app.services.context import Services
from app.services.jobs import Done
from app.storage import registry, tables
from app.types import JobState
from workers import main as worker_main
from workers.runners import RUNNERS

PROJECT = "default"


def encoder(name: str) -> tables.Encoder:
    return tables.Encoder(project=PROJECT, name=name, kind="external", dim=2, modality="text")


def encoders(deployment) -> list[str]:
    with deployment.services.db.transaction() as session:
        return list(session.scalars(select(tables.Encoder.name)))


def submit(deployment, kind: str) -> str:
    return jobs.submit(deployment.services, PROJECT, kind, {}).id


def ended(deployment, job_id: str) -> tables.Job:
    return deployment.wait(job_id, lambda row: row.finished_at is not None)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> str:
    """A kind of job that only ends."""
    monkeypatch.setitem(RUNNERS, "quick", lambda *_: Done({}))
    return "quick"


def test_twenty_jobs_of_two_workers_all_succeed_once(deployment):
    names = [f"s{number}" for number in range(20)]
    for _ in range(2):
        deployment.worker().start()
    ids = {name: deployment.bootstrap(name) for name in names}
    for name, job_id in ids.items():
        row = ended(deployment, job_id)
        assert (row.state, row.attempts, row.result["anchor_set"]) == (JobState.succeeded, 1, name)
    with deployment.services.db.transaction() as session:
        sets = registry.page(session, tables.AnchorSet, PROJECT, after="", limit=99)
        assert {row.name: row.provenance["job"] for row in sets} == ids
        noted = registry.audit(session, PROJECT, before=None, limit=99)
        assert sum(row.resource == "anchor-set" for row in noted) == 20


def test_a_job_longer_than_a_lease_runs_once(deployment, monkeypatch):
    ran = []

    def work(*_) -> Done:
        ran.append(1)
        time.sleep(2.5)  # no report on the way
        return Done({})

    monkeypatch.setitem(RUNNERS, "long", work)
    for _ in range(2):
        deployment.worker(lease_s=1.0).start()
    row = ended(deployment, submit(deployment, "long"))
    assert (row.state, row.attempts, ran) == (JobState.succeeded, 1, [1])


def test_a_lost_workers_job_is_taken_up(deployment, quick):
    deployment.worker().start()
    job_id = submit(deployment, "nobody")
    ended_long_ago = tables.now() - timedelta(hours=1)
    deployment.alter(job_id, kind=quick, state="running", lease="0" * 32, lease_until=ended_long_ago, attempts=1)
    row = ended(deployment, job_id)
    assert (row.state, row.attempts) == (JobState.succeeded, 2)


def unheard(deployment) -> Services:
    """The services of an API process whose messages all get lost."""
    return replace(deployment.services, enqueue=lambda job_id, pause_s: None)


def test_a_job_whose_message_was_lost_is_found(deployment, quick):
    worker = deployment.worker()
    worker.start()
    ended(deployment, submit(deployment, quick))
    job_id = jobs.submit(unheard(deployment), PROJECT, quick, {}).id
    deployment.alter(job_id, due_at=tables.now() - timedelta(hours=1))
    assert ended(deployment, job_id).attempts == 1


def test_jobs_outlive_the_memory_of_redis(deployment, quick, redis_url):
    """None of them is due: only that the memory is another one tells that their messages are lost."""
    worker = deployment.worker()
    worker.start()
    ended(deployment, submit(deployment, quick))  # the worker has met this memory
    waiting = [jobs.submit(unheard(deployment), PROJECT, quick, {}).id for _ in range(3)]
    for job_id in waiting:
        deployment.alter(job_id, due_at=tables.now() + timedelta(hours=1))
    with Redis.from_url(redis_url) as client:
        client.delete(*client.scan_iter(f"{deployment.settings.redis_prefix}:*"))
    for job_id in waiting:
        row = ended(deployment, job_id)
        assert (row.state, row.attempts) == (JobState.succeeded, 1)
    assert worker.alive


def test_a_job_that_fails_by_a_fault_goes_round_through_the_queue_until_its_tries_are_used_up(deployment, monkeypatch):
    monkeypatch.setattr(jobs, "BACKOFF_S", 0.01)
    ran = []
    monkeypatch.setitem(RUNNERS, "faulty", lambda *_: ran.append(1) or 1 / 0)
    deployment.worker().start()
    row = ended(deployment, submit(deployment, "faulty"))
    assert (row.state, row.error["code"], row.attempts, len(ran)) == (JobState.failed, "internal", jobs.ATTEMPTS, jobs.ATTEMPTS)


def test_a_stop_hands_back_what_reports_and_another_worker_takes_it(deployment, monkeypatch):
    going, first = threading.Event(), threading.Event()

    def work(services, row, progress) -> Done:
        while not first.is_set():
            going.set()
            progress(1, 2, {})
            time.sleep(0.01)
        return Done({}, keep=lambda session: session.add(encoder("made")))

    monkeypatch.setitem(RUNNERS, "slow", work)
    worker = deployment.worker()
    worker.start()
    assert worker.alive
    job_id = submit(deployment, "slow")
    assert going.wait(30)
    worker.stop()
    assert not worker.alive
    row = deployment.row(job_id)
    assert (row.state, row.attempts, row.lease) == (JobState.queued, 0, None)
    first.set()
    deployment.worker().start()
    assert ended(deployment, job_id).attempts == 1
    assert encoders(deployment) == ["made"]


def test_a_stop_hands_back_even_what_is_in_a_long_step_and_its_late_end_has_no_effect(deployment, monkeypatch):
    monkeypatch.setattr(worker_main, "STOP_TIMEOUT_MS", 200)
    begun, go_on, over = threading.Event(), threading.Event(), threading.Event()

    def work(services, row, progress) -> Done:
        begun.set()
        go_on.wait(30)
        threading.Timer(0.5, over.set).start()
        return Done({}, keep=lambda session: session.add(encoder("late")))

    monkeypatch.setitem(RUNNERS, "stuck", work)
    worker = deployment.worker()
    worker.start()
    job_id = submit(deployment, "stuck")
    assert begun.wait(30)
    worker.stop()
    row = deployment.row(job_id)
    assert (row.state, row.attempts) == (JobState.queued, 0)
    go_on.set()
    assert over.wait(30)
    assert deployment.row(job_id).state == JobState.queued
    assert encoders(deployment) == []


def test_workers_take_several_jobs_at_once_when_told_to(deployment, monkeypatch):
    together = threading.Barrier(3)

    def work(*_) -> Done:
        together.wait(30)  # all three are here, or nobody goes on
        return Done({})

    monkeypatch.setitem(RUNNERS, "together", work)
    for _ in range(3):
        deployment.worker().start()
    for job_id in [submit(deployment, "together") for _ in range(3)]:
        assert ended(deployment, job_id).state == JobState.succeeded
