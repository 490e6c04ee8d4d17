"""Jobs on both databases: claimed by a lease, tried again, handed back, and their effect happens once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import select

from app.errors import JobFinished, JobNotFound, NameTaken, QueueFull, StorageUnavailable, TooManyJobs
from app.services import jobs
from app.services.context import Limits, Services
from app.services.jobs import Done
from app.storage import registry, tables
from app.storage.connect import redis_client
from app.storage.queue import RedisQueue
from app.types import JobKind, JobState

PROJECT = "p"
LONG_AGO = timedelta(hours=-1)


class Put(list[tuple[str, float]]):
    """What was handed to the queue: ids and pauses."""

    def __call__(self, job_id: str, pause_s: float) -> None:
        self.append((job_id, pause_s))


@pytest.fixture
def put() -> Put:
    return Put()


@pytest.fixture
def services(services: Services, put: Put) -> Services:
    return replace(services, enqueue=put)


@pytest.fixture
def job(services: Services, put: Put) -> tables.Job:
    row = jobs.submit(services, PROJECT, JobKind.bootstrap, {"x": 1})
    put.clear()
    return row


def row_of(services: Services, job_id: str) -> tables.Job:
    with services.db.transaction() as session:
        return session.get_one(tables.Job, job_id)


def alter(services: Services, job_id: str, **values: Any) -> None:
    with services.db.transaction() as session:
        row = session.get_one(tables.Job, job_id)
        for name, value in values.items():
            setattr(row, name, value)


def unpause(services: Services, job: tables.Job) -> None:
    """Let the pause before a job's next try have passed."""
    row = row_of(services, job.id)
    if row.state == JobState.queued and row.attempts:
        alter(services, job.id, due_at=tables.now())


def run(services: Services, job: tables.Job, runner: jobs.Run, leases: jobs.Leases | None = None, **more: Any) -> tables.Job:
    """A worker's turn with the job."""
    unpause(services, job)
    jobs.run(services, job.id, {JobKind.bootstrap: runner}, leases or jobs.Leases(services), **more)
    return row_of(services, job.id)


def well(services: Services, row: tables.Job, progress: jobs.Progress) -> Done:
    return Done({"answer": row.arguments["x"]})


def never(services: Services, row: tables.Job, progress: jobs.Progress) -> Done:
    raise AssertionError("this job should not have been run")


def failing(error: Exception) -> jobs.Run:
    def fail(services: Services, row: tables.Job, progress: jobs.Progress) -> Done:
        raise error

    return fail


def encoder(name: str) -> tables.Encoder:
    return tables.Encoder(project=PROJECT, name=name, kind="external", dim=2, modality="text")


def encoders(services: Services) -> list[str]:
    with services.db.transaction() as session:
        return list(session.scalars(select(tables.Encoder.name)))


def lose(services: Services, job: tables.Job) -> None:
    """Claim the job as a worker does that is killed then, and let its lease end."""
    now = tables.now()
    with services.db.transaction() as session:
        assert registry.claim_job(
            session,
            job.id,
            lease=tables.new_id(),
            now=now,
            until=now + LONG_AGO,
            ready=tables.now() + timedelta(seconds=jobs.UNCLAIMED_S),
        )


# --- how a try ends -------------------------------------------------------------------------------------------------------


def test_a_job_that_ends_well_keeps_its_result_and_what_it_made(services, job):
    row = run(services, job, lambda *_: Done({"answer": 1}, keep=lambda session: session.add(encoder("made"))))
    assert (row.state, row.result, row.error, row.attempts) == (JobState.succeeded, {"answer": 1}, None, 1)
    assert row.started_at <= row.finished_at
    assert encoders(services) == ["made"]


def test_an_error_of_ours_is_recorded_at_once_with_its_code_and_field(services, job, put):
    row = run(services, job, failing(NameTaken("the name is gone", field="name")))
    assert (row.state, row.result, row.attempts) == (JobState.failed, None, 1)
    assert row.error == {"code": "name-taken", "detail": "the name is gone", "field": "name"}
    assert put == []


def test_an_error_while_keeping_fails_the_job_and_keeps_nothing(services, job):
    def keep(session):
        session.add(encoder("half"))
        session.flush()
        raise NameTaken("the name is gone")

    row = run(services, job, lambda *_: Done({"answer": 1}, keep=keep))
    assert (row.state, row.result, row.error["code"]) == (JobState.failed, None, "name-taken")
    assert encoders(services) == []


def test_a_fault_is_tried_again_after_doubling_pauses_and_then_failed_without_its_inside(services, job, put):
    seen = []
    for attempt in range(1, jobs.ATTEMPTS + 1):
        row = run(services, job, failing(ZeroDivisionError("/secret/path")))
        seen.append(row.state)
        assert row.attempts == attempt
        assert row.error["code"] == "internal"
        assert "secret" not in row.error["detail"]
    assert seen == [JobState.queued] * (jobs.ATTEMPTS - 1) + [JobState.failed]
    assert put == [(job.id, jobs.BACKOFF_S * 2**number) for number in range(jobs.ATTEMPTS - 1)]
    assert row.finished_at is not None
    assert run(services, job, never).attempts == jobs.ATTEMPTS


def test_what_is_unavailable_is_tried_again_and_its_code_kept(services, job):
    runner = failing(StorageUnavailable("the disk is full", retry_after_s=30))
    states = [run(services, job, runner).state for _ in range(jobs.ATTEMPTS)]
    assert states == [JobState.queued] * (jobs.ATTEMPTS - 1) + [JobState.failed]
    assert row_of(services, job.id).error == {"code": "storage-unavailable", "detail": "the disk is full"}


def test_a_job_that_works_at_its_second_try_shows_no_error(services, job):
    run(services, job, failing(ZeroDivisionError()))
    row = run(services, job, well)
    assert (row.state, row.error, row.attempts) == (JobState.succeeded, None, 2)


def test_a_kind_that_nobody_can_run_ends_failed(services, job):
    for _ in range(jobs.ATTEMPTS):
        unpause(services, job)
        jobs.run(services, job.id, {}, jobs.Leases(services))
    row = row_of(services, job.id)
    assert (row.state, row.error["code"]) == (JobState.failed, "internal")


@pytest.mark.parametrize("first", [well, failing(NameTaken("gone"))])
def test_a_finished_job_is_never_run_again(services, job, first):
    before = run(services, job, first)
    after = run(services, job, never)
    assert (after.state, after.attempts, after.version) == (before.state, 1, before.version)


def test_an_unknown_job_is_left_alone(services):
    jobs.run(services, "0" * 32, {}, jobs.Leases(services))
    with services.db.transaction() as session:
        assert registry.jobs(session, PROJECT, state=None, before=None, limit=9) == []


def test_progress_is_written_at_the_first_and_the_last_step_and_seldom_between(services, job):
    seen = []

    def work(services, row, progress):
        for step in range(1001):
            progress(step, 1000, {"loss": step / 2})
            if step in (0, 1, 1000):
                seen.append(row_of(services, row.id).progress)
        return Done({})

    run(services, job, work)
    assert seen[0] == seen[1] == {"done": 0, "total": 1000, "loss": 0.0}
    assert seen[2] == {"done": 1000, "total": 1000, "loss": 500.0}


# --- cancelled ------------------------------------------------------------------------------------------------------------


def test_a_waiting_job_is_cancelled_at_once_and_never_runs(services, job):
    assert jobs.cancel(services, PROJECT, job.id).state == JobState.cancelled
    row = run(services, job, never)
    assert (row.state, row.attempts) == (JobState.cancelled, 0)
    assert row.finished_at is not None


def test_a_running_job_learns_at_its_next_report_that_it_should_stop(services, job):
    def work(services, row, progress):
        progress(0, 10, {})
        assert jobs.cancel(services, PROJECT, row.id).state == JobState.running
        progress(10, 10, {})
        raise AssertionError("the report should have stopped it")

    row = run(services, job, work)
    assert (row.state, row.result, row.error) == (JobState.cancelled, None, None)


def test_a_job_that_waits_for_its_next_try_is_cancelled_at_once(services, job):
    run(services, job, failing(ZeroDivisionError()))
    assert jobs.cancel(services, PROJECT, job.id).state == JobState.cancelled


def test_a_lost_worker_takes_a_cancelled_job_along(services, job):
    lose(services, job)
    assert jobs.cancel(services, PROJECT, job.id).state == JobState.running
    row = run(services, job, never)
    assert (row.state, row.result) == (JobState.cancelled, None)
    assert row.finished_at is not None


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
def test_a_finished_job_cannot_be_cancelled(services, job, state):
    alter(services, job.id, state=state)
    with pytest.raises(JobFinished, match=state):
        jobs.cancel(services, PROJECT, job.id)
    assert not row_of(services, job.id).cancel_requested


def test_a_job_is_its_projects_own(services, job):
    with pytest.raises(JobNotFound):
        jobs.cancel(services, "other", job.id)
    assert row_of(services, job.id).state == JobState.queued


# --- leases ---------------------------------------------------------------------------------------------------------------


def test_of_many_workers_that_take_one_message_one_runs_the_job(services, job):
    together, ran = threading.Barrier(6), []

    def take(number: int) -> None:
        together.wait()
        run(services, job, lambda *_: ran.append(number) or Done({}))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(take, range(6)))
    assert len(ran) == 1
    assert row_of(services, job.id).attempts == 1


def test_a_job_whose_lease_holds_is_left_alone(services, job):
    def work(services, row, progress):
        run(services, job, never)
        return Done({})

    assert run(services, job, work).attempts == 1


def taken_over(services: Services, job: tables.Job, first: jobs.Run, second: jobs.Run) -> tables.Job:
    """`first` runs under a lease that has ended already; while it runs, another worker takes the job over by `second`."""
    silent = replace(services, lease_s=-1.0)

    def slow(services: Services, row: tables.Job, progress: jobs.Progress) -> Done:
        run(services, job, second)
        return first(services, row, progress)

    return run(silent, job, slow)


@pytest.mark.parametrize(
    "late",
    [
        lambda services, row, progress: Done({"by": "first"}, keep=lambda session: session.add(encoder("first"))),
        failing(NameTaken("late")),
        failing(ZeroDivisionError()),
        failing(StorageUnavailable("late")),
        failing(jobs.Cancelled()),
        failing(jobs.HandedBack()),
        lambda services, row, progress: progress(10, 10, {}),
    ],
    ids=["success", "error", "fault", "unavailable", "cancelled", "handed back", "progress"],
)
def test_a_worker_whose_job_was_taken_over_changes_nothing(services, job, late):
    row = taken_over(
        services,
        job,
        late,
        lambda *_: Done({"by": "second"}, keep=lambda session: session.add(encoder("second"))),
    )
    assert (row.state, row.result, row.attempts, row.error) == (JobState.succeeded, {"by": "second"}, 2, None)
    assert row.progress == {}
    assert encoders(services) == ["second"]


def test_a_worker_whose_job_was_taken_over_stops_at_its_next_report(services, job):
    def first(services, row, progress):
        progress(1, 10, {"by": "first"})
        raise AssertionError("the report should have stopped it")

    def second(services, row, progress):
        progress(10, 10, {"by": "second"})
        return Done({})

    assert taken_over(services, job, first, second).progress == {"done": 10, "total": 10, "by": "second"}


def test_of_two_workers_that_finish_one_job_at_once_exactly_one_has_an_effect(services, job):
    together, started = threading.Barrier(2), threading.Event()

    def worker(name: str, before: Callable[[], object] = lambda: None) -> jobs.Run:
        def work(services: Services, row: tables.Job, progress: jobs.Progress) -> Done:
            before()
            together.wait(30)
            return Done({"by": name}, keep=lambda session: session.add(encoder(name)))

        return work

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(run, replace(services, lease_s=-1.0), job, worker("first", started.set))
        assert started.wait(30)
        second = pool.submit(run, services, job, worker("second"))
        first.result()
        second.result()
    row = row_of(services, job.id)
    assert (row.state, row.result) == (JobState.succeeded, {"by": "second"})
    assert encoders(services) == ["second"]


def test_a_process_renews_the_leases_of_its_running_jobs_only(services, job):
    leases = jobs.Leases(services)
    other = jobs.submit(services, PROJECT, JobKind.bootstrap, {})
    lose(services, other)

    def work(services, row, progress):
        alter(services, job.id, lease_until=tables.now() + LONG_AGO)
        leases.renew()
        assert row_of(services, job.id).lease_until > tables.now()
        return Done({})

    assert run(services, job, work, leases).state == JobState.succeeded
    assert row_of(services, other.id).lease_until < tables.now()
    assert leases.held() == []


def test_a_lost_worker_is_replaced_until_the_tries_are_used_up(services, job, put):
    for attempt in range(1, jobs.ATTEMPTS + 1):
        lose(services, job)
        assert row_of(services, job.id).attempts == attempt
        assert jobs.sweep(services, queue_lost=False, queue_empty=False) == 1
    assert put == [(job.id, 0.0)] * jobs.ATTEMPTS
    row = run(services, job, never)
    assert (row.state, row.result, row.error["code"]) == (JobState.failed, None, "attempts-exhausted")
    assert row.attempts == jobs.ATTEMPTS
    assert jobs.sweep(services, queue_lost=True, queue_empty=True) == 0


# --- handed back ----------------------------------------------------------------------------------------------------------


def test_a_stopping_worker_hands_its_job_back_and_the_try_does_not_count(services, job, put):
    def work(services, row, progress):
        progress(1, 10, {})
        raise AssertionError("the report should have stopped it")

    for _ in range(jobs.ATTEMPTS + 1):
        row = run(services, job, work, stopping=lambda: True)
        assert (row.state, row.attempts, row.lease) == (JobState.queued, 0, None)
    assert put == [(job.id, 0.0)] * (jobs.ATTEMPTS + 1)
    assert run(services, job, well).attempts == 1


def test_a_job_handed_back_in_the_middle_of_a_step_records_nothing_of_its_late_end(services, job, put):
    leases = jobs.Leases(services)

    def work(services, row, progress):
        leases.hand_back()
        return Done({"late": True}, keep=lambda session: session.add(encoder("late")))

    row = run(services, job, work, leases)
    assert (row.state, row.attempts, row.result) == (JobState.queued, 0, None)
    assert put == [(job.id, 0.0)]
    assert encoders(services) == []


def test_handing_back_twice_or_too_late_changes_nothing(services, job):
    lose(services, job)
    lease = row_of(services, job.id).lease
    for _ in range(2):
        jobs.hand_back(services, lease)
    assert row_of(services, job.id).attempts == 0
    run(services, job, well)
    jobs.hand_back(services, lease)
    assert row_of(services, job.id).state == JobState.succeeded


# --- the queue and its limits ---------------------------------------------------------------------------------------------


def test_a_project_may_have_so_many_unfinished_jobs_and_another_project_its_own(services):
    services = replace(services, limits=Limits(project_jobs=2))
    first, _ = (jobs.submit(services, PROJECT, JobKind.bootstrap, {"x": 1}) for _ in range(2))
    with pytest.raises(TooManyJobs) as caught:
        jobs.submit(services, PROJECT, JobKind.bootstrap, {})
    assert (caught.value.limit, caught.value.retry_after_s > 0) == (2, True)
    jobs.submit(services, "q", JobKind.bootstrap, {})
    run(services, first, well)
    jobs.submit(services, PROJECT, JobKind.bootstrap, {})


def test_all_projects_together_may_have_so_many_unfinished_jobs(services):
    services = replace(services, limits=Limits(jobs=2))
    for project in ("p", "q"):
        jobs.submit(services, project, JobKind.bootstrap, {})
    with pytest.raises(QueueFull) as caught:
        jobs.submit(services, "r", JobKind.bootstrap, {})
    assert caught.value.retry_after_s > 0
    with services.db.transaction() as session:
        assert registry.count_unfinished(session) == 2


def test_a_job_is_handed_to_the_queue_once_it_is_written_down(services):
    seen = []
    checking = replace(services, enqueue=lambda job_id, pause_s: seen.append((row_of(services, job_id).state, pause_s)))
    jobs.submit(checking, PROJECT, JobKind.bootstrap, {})
    assert seen == [(JobState.queued, 0.0)]


def test_a_queue_that_is_away_loses_no_job(services, put):
    client = redis_client("redis://127.0.0.1:1/0")
    queue = RedisQueue(client, "p")
    job = jobs.submit(replace(services, enqueue=queue.put), PROJECT, JobKind.bootstrap, {})
    assert row_of(services, job.id).state == JobState.queued
    alter(services, job.id, due_at=tables.now() + LONG_AGO)
    assert jobs.sweep(services, queue_lost=False, queue_empty=True) == 1
    assert put == [(job.id, 0.0)]
    client.close()


def test_a_job_whose_message_is_lost_is_handed_over_again_once_it_is_due_and_the_queue_empty(services, job, put):
    assert jobs.sweep(services, queue_lost=False, queue_empty=True) == 0  # it may still be on its way
    alter(services, job.id, due_at=tables.now())
    assert jobs.sweep(services, queue_lost=False, queue_empty=False) == 0  # it may be what waits there
    assert jobs.sweep(services, queue_lost=False, queue_empty=True) == 1
    assert jobs.sweep(services, queue_lost=False, queue_empty=True) == 0
    assert put == [(job.id, 0.0)]


def test_a_job_whose_message_is_lost_in_a_queue_that_is_never_empty_is_handed_over_again_in_the_end(services, job, put):
    alter(services, job.id, due_at=tables.now() - timedelta(seconds=jobs.STALE_S))
    assert [jobs.sweep(services, queue_lost=False, queue_empty=False) for _ in range(2)] == [1, 0]
    assert put == [(job.id, 0.0)]


@pytest.mark.parametrize("lost", [False, True])
def test_a_job_that_failed_waits_for_its_next_try_whatever_the_queue_has_lost(services, job, put, monkeypatch, lost):
    """A worker that starts, or a Redis that does, must not use up the tries of a job whose disk is away for a minute."""
    monkeypatch.setattr(jobs, "BACKOFF_S", 60)
    run(services, job, lambda *_: 1 / 0)
    put.clear()
    assert jobs.sweep(services, queue_lost=lost, queue_empty=True) == 0
    jobs.run(services, job.id, {JobKind.bootstrap: well}, jobs.Leases(services))  # nor must a second message of it
    assert row_of(services, job.id).attempts == 1
    alter(services, job.id, due_at=tables.now())
    assert jobs.sweep(services, queue_lost=lost, queue_empty=True) == 1
    assert run(services, job, well).attempts == 2


def test_a_lost_job_is_handed_over_once_when_the_queue_is_lost_too(services, job, put):
    lose(services, job)
    assert jobs.sweep(services, queue_lost=True, queue_empty=True) == 1
    assert put == [(job.id, 0.0)]


def test_a_queue_that_lost_its_memory_is_given_everything_that_waits_again(services, put):
    waiting = [jobs.submit(services, PROJECT, JobKind.bootstrap, {"x": 1}) for _ in range(3)]
    running = jobs.submit(services, PROJECT, JobKind.bootstrap, {})
    done = jobs.submit(services, PROJECT, JobKind.bootstrap, {"x": 1})
    run(services, done, well)
    put.clear()

    def work(services, row, progress):
        assert jobs.sweep(services, queue_lost=True, queue_empty=True) == 3
        return Done({})

    run(services, running, work)
    assert [job_id for job_id, _ in put] == [row.id for row in waiting]


def test_a_lost_job_is_handed_over_once_by_two_sweeps_at_once(services, job, put):
    lose(services, job)
    together = threading.Barrier(2)

    def sweep(_: int) -> int:
        together.wait()
        return jobs.sweep(services, queue_lost=False, queue_empty=False)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(sweep, range(2)))
    assert 1 <= len(put) <= 2  # the claim decides, not the message
    assert run(services, job, well).attempts == 2


# --- a database that goes away --------------------------------------------------------------------------------------------


def end_all(services: Services) -> None:
    with psycopg.connect(services.db.url.set(drivername="postgresql").render_as_string(False), autocommit=True) as connection:
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        connection.execute(f"{others} AND pid <> pg_backend_pid()")


@pytest.mark.parametrize("flushed", [False, True])
def test_an_end_lost_on_its_way_is_recorded_again_with_what_the_job_made(on_postgres, monkeypatch, flushed):
    monkeypatch.setattr(jobs, "BACKOFF_S", 0.01)
    job = jobs.submit(on_postgres, PROJECT, JobKind.bootstrap, {})
    made, tries = encoder("made"), []

    def keep(session):
        tries.append(1)
        session.add(made)
        if flushed:
            session.flush()
        if len(tries) == 1:
            end_all(on_postgres)

    row = run(on_postgres, job, lambda *_: Done({}, keep=keep))
    assert (row.state, row.attempts, len(tries)) == (JobState.succeeded, 1, 2)
    assert encoders(on_postgres) == ["made"]


def test_progress_that_cannot_be_recorded_stops_no_job(on_postgres, monkeypatch):
    monkeypatch.setattr("app.storage.db.CONNECT_FOR_S", 0.1)
    job = jobs.submit(on_postgres, PROJECT, JobKind.bootstrap, {"x": 1})
    name = on_postgres.db.url.database
    admin = on_postgres.db.url.set(drivername="postgresql", database="postgres").render_as_string(False)

    def work(services, row, progress):
        with psycopg.connect(admin, autocommit=True) as connection:
            connection.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
            try:
                end_all_but = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
                connection.execute(end_all_but, (name,))
                progress(10, 10, {})
            finally:
                connection.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
        return well(services, row, progress)

    row = run(on_postgres, job, work)
    assert (row.state, row.progress) == (JobState.succeeded, {})
