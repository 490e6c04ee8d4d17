"""Jobs on both databases: claimed by a lease, tried again, handed back, and their effect happens once."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import torch
from sqlalchemy import select

from app import errors
from app.errors import (
    InvalidSeeds,
    NameTaken,
    PoolTooLarge,
    QualityBelowMinimum,
    StorageUnavailable,
)
from app.maths.bootstrap.pools import Step
from app.services.anchors import bootstrap
from app.services.context import Limits, Services
from app.services.jobs import queue
from app.services.jobs.leases import Leases, hand_back
from app.services.jobs.queue import Done
from app.services.upkeep import blob_sweep
from app.storage import tables
from app.storage.queries import jobs as job_queries
from app.types import JobKind, JobState
from tests.services.helpers import PROJECT, again, age, alter, files
from tests.storage.helpers import closed, end_connections

LONG_AGO = timedelta(hours=-1)


@pytest.fixture
def job(services: Services) -> tables.JobRow:
    return queue.submit(services, PROJECT, JobKind.bootstrap, {"x": 1})


#: each turn takes the job that a test means: nothing else has been due for as long
_days_due = itertools.count(1)


def run(
    services: Services,
    job: tables.JobRow,
    runner: queue.Run,
    leases: Leases | None = None,
    **more: Any,
) -> tables.JobRow:
    """A worker's turn with the job, however long the pause before its next try is."""
    alter(services, job, due_at=tables.now() - timedelta(days=next(_days_due)))
    turn(services, runner, leases, **more)
    return again(services, job)


def turn(services: Services, runner: queue.Run, leases: Leases | None = None, **more: Any) -> bool:
    """A worker's turn with whatever is due; returns whether there was a job."""
    return queue.run_next(services, {JobKind.bootstrap: runner}, leases or Leases(services), **more)


def well(services: Services, row: tables.JobRow, progress: queue.Progress) -> Done:
    return Done({"answer": row.arguments["x"]})


def never(services: Services, row: tables.JobRow, progress: queue.Progress) -> Done:
    raise AssertionError("this job should not have been run")


def failing(error: Exception) -> queue.Run:
    def fail(services: Services, row: tables.JobRow, progress: queue.Progress) -> Done:
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


# --- how a try ends -------------------------------------------------------------------------------


def test_a_job_that_ends_well_keeps_its_result_and_what_it_made(services, job):
    row = run(
        services,
        job,
        lambda *_: Done({"answer": 1}, keep=lambda session: session.add(encoder("made"))),
    )
    assert (row.state, row.result, row.error, row.attempts) == (
        JobState.succeeded,
        {"answer": 1},
        None,
        1,
    )
    assert row.started_at <= row.finished_at
    assert encoders(services) == ["made"]


@pytest.mark.parametrize(
    ("error", "members"),
    [
        (NameTaken("the name is gone", field="name"), {"field": "name"}),
        (
            InvalidSeeds("twice", field="seeds", rows=[3, 5]),
            {"field": "seeds", "rows": [3, 5], "row_count": 2},
        ),
        (PoolTooLarge("many", field="source_pool", limit=7), {"field": "source_pool", "limit": 7}),
        (
            QualityBelowMinimum("low", found={"mrr": 0.5, "recall": math.nan}),
            {"field": None, "found": {"mrr": 0.5, "recall": None}},
        ),
    ],
)
def test_an_error_of_ours_ends_the_job_at_once_and_says_what_the_problem_document_would(
    services, job, error, members
):
    def work(services, row, progress):
        progress.checkpoint(1, at(1))
        raise error

    row = run(services, job, work)
    assert (row.state, row.result, row.attempts, row.checkpoint) == (JobState.failed, None, 1, None)
    assert row.error == {"code": error.code, "detail": error.detail, **members}


def test_an_error_while_keeping_fails_the_job_and_keeps_nothing(services, job):
    def keep(session):
        session.add(encoder("half"))
        session.flush()
        raise NameTaken("the name is gone")

    row = run(services, job, lambda *_: Done({"answer": 1}, keep=keep))
    assert (row.state, row.result, row.error["code"]) == (JobState.failed, None, "name-taken")
    assert encoders(services) == []


@pytest.mark.parametrize(
    ("error", "recorded"),
    [
        (ZeroDivisionError("/secret/path"), {"code": "internal"}),
        (
            StorageUnavailable("the disk is full", retry_after_s=30),
            {"code": "storage-unavailable", "detail": "the disk is full"},
        ),
    ],
    ids=["a fault", "unavailable"],
)
def test_a_fault_is_tried_again_after_doubling_pauses_and_then_failed_without_its_inside(
    services, job, error, recorded
):
    seen, pauses = [], []
    for attempt in range(1, queue.ATTEMPTS + 1):
        begun = tables.now()
        row = run(services, job, failing(error))
        seen.append(row.state)
        pauses.append((row.due_at - begun).total_seconds())
        assert row.attempts == attempt
        assert row.error == {"detail": row.error["detail"], **recorded}
        assert "secret" not in row.error["detail"]
    assert seen == [JobState.queued] * (queue.ATTEMPTS - 1) + [JobState.failed]
    first_s = getattr(error, "retry_after_s", queue.BACKOFF_S)
    for number, pause in enumerate(pauses[:-1]):
        assert first_s * 2**number <= pause < first_s * 2**number + 1
    assert row.finished_at is not None
    assert not turn(services, never)


def test_a_job_that_failed_is_left_alone_until_its_pause_is_over_and_shows_no_error_if_it_works_then(
    services, job, monkeypatch
):
    """A worker that looks for jobs must not use up the tries of one whose disk is away for a minute."""
    monkeypatch.setattr(queue, "BACKOFF_S", 60)
    run(services, job, failing(ZeroDivisionError()))
    assert not turn(services, never)
    alter(services, job, due_at=tables.now())
    assert turn(services, well)
    row = again(services, job)
    assert (row.state, row.error, row.attempts) == (JobState.succeeded, None, 2)


def test_a_kind_that_nobody_can_run_ends_failed(services, job):
    for _ in range(queue.ATTEMPTS):
        alter(services, job, due_at=tables.now())
        assert queue.run_next(services, {}, Leases(services))
    row = again(services, job)
    assert (row.state, row.error["code"]) == (JobState.failed, "internal")


def test_progress_is_written_at_the_first_and_the_last_step_and_seldom_between(services, job):
    seen = []

    def work(services, row, progress):
        for step in range(1001):
            progress(step, 1000, {"loss": step / 2})
            if step in (0, 1, 1000):
                seen.append(again(services, row).progress)
        return Done({})

    run(services, job, work)
    assert seen[0] == seen[1] == {"done": 0, "total": 1000, "loss": 0.0}
    assert seen[2] == {"done": 1000, "total": 1000, "loss": 500.0}


def test_progress_never_goes_back_and_a_sign_of_life_takes_no_fact_away(services, job, monkeypatch):
    monkeypatch.setattr(queue, "PROGRESS_EVERY_S", 0)
    seen = []

    def work(services, row, progress):
        for done, facts in ((3, {"loss": 0.5, "round": 1}), (2, {}), (3, {"round": 2})):
            progress(done, 10, facts)
            seen.append(again(services, row).progress)
        return Done({})

    run(services, job, work)
    first, second = ({"done": 3, "total": 10, "loss": 0.5, "round": number} for number in (1, 2))
    assert seen == [first, first, second]


def test_a_step_that_tells_nothing_new_is_no_event_and_still_learns_of_cancellation(
    services, job, monkeypatch
):
    monkeypatch.setattr(queue, "PROGRESS_EVERY_S", 0)

    def work(services, row, progress):
        progress(1, 10, {"loss": 0.5})
        version = again(services, row).version
        for _ in range(5):
            progress(1, 10)
        assert again(services, row).version == version
        queue.cancel(services, PROJECT, row.id)
        progress(1, 10)
        raise AssertionError("the report should have stopped it")

    assert run(services, job, work).state == JobState.cancelled


def test_a_job_asks_whether_it_should_stop_four_times_a_second(services, job):
    def work(services, row, progress):
        progress(1, 10)
        queue.cancel(services, PROJECT, row.id)
        time.sleep(0.25)
        progress(1, 10)
        raise AssertionError("the report should have stopped it")

    assert run(services, job, work).state == JobState.cancelled


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_null_in_progress_and_result(services, job, number):
    def work(services, row, progress):
        progress(1, 2, {"loss": number, "each": [1.5, number], "by": {"mrr": number}})
        return Done({"loss": number, "confidence": [0.5, number]})

    row = run(services, job, work)
    assert row.progress == {
        "done": 1,
        "total": 2,
        "loss": None,
        "each": [1.5, None],
        "by": {"mrr": None},
    }
    assert row.result == {"loss": None, "confidence": [0.5, None]}


# --- checkpoints ----------------------------------------------------------------------------------


@pytest.fixture
def keep_all(monkeypatch):
    """Every state is kept."""
    monkeypatch.setattr(queue, "CHECKPOINT_EVERY_S", 0)
    monkeypatch.setattr(queue, "CHECKPOINT_SHARE", math.inf)


def at(step: int) -> dict[str, torch.Tensor]:
    return {"step": torch.tensor(step)}


def step_of(state: dict[str, torch.Tensor] | None) -> int | None:
    return None if state is None else int(state["step"])


def going(services: Services, job: tables.JobRow, *steps: int) -> int | None:
    """A worker's turn that keeps these steps and is killed then; returns the step from which it went on."""
    found = []

    def work(services: Services, row: tables.JobRow, progress: queue.Progress) -> Done:
        found.append(step_of(progress.resume()))
        for step in steps:
            progress.checkpoint(step, at(step))
        alter(services, row, lease_until=tables.now() + LONG_AGO)
        raise KeyboardInterrupt  # the nearest thing to a killed process that a test survives: nothing is recorded

    with pytest.raises(KeyboardInterrupt):
        run(services, job, work)
    return found[0]


def resumed(services: Services, job: tables.JobRow) -> int | None:
    """A last turn, which ends well; returns the step from which it went on."""
    row = run(
        services, job, lambda services, row, progress: Done({"from": step_of(progress.resume())})
    )
    assert row.state == JobState.succeeded
    return row.result["from"]  # type: ignore[no-any-return]


STATE = {
    "floats": torch.tensor([1.5, math.nan, -0.0, math.inf, 1e-45]),
    "doubles": torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).T,
    "halves": torch.tensor([0.1], dtype=torch.bfloat16),
    "pairs": torch.tensor([[2**62, -1]]),
    "kept": torch.tensor([True, False]),
    "draws": torch.Generator().manual_seed(1).get_state(),
    "round": torch.tensor(7),
    "none": torch.empty(0, 2),
    "job": torch.tensor(1),
}


def test_a_later_try_finds_the_last_state_bit_by_bit(services, job):
    state = {
        **STATE,
        "same": STATE["floats"],
        "part": STATE["floats"][1:],
    }  # what shares memory is kept, too
    found = {}

    def first(services, row, progress):
        assert progress.resume() is None
        progress.checkpoint(1, state)
        raise StorageUnavailable("later")

    def second(services, row, progress):
        found.update(progress.resume())
        return Done({})

    run(services, job, first)
    run(services, job, second)
    assert found.keys() == state.keys()
    for name, tensor in state.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(*(each.reshape(-1).view(torch.uint8) for each in (found[name], tensor)))


def test_a_job_that_gets_further_each_time_may_lose_any_number_of_workers(services, job, keep_all):
    begun = [going(services, job, step, step + 1) for step in range(1, 2 * queue.ATTEMPTS)]
    assert begun == [None, *range(2, 2 * queue.ATTEMPTS)]
    assert again(services, job).attempts == 1
    assert resumed(services, job) == 2 * queue.ATTEMPTS


@pytest.mark.parametrize("steps", [(), (7,), (6, 7)])
def test_a_job_that_loses_its_worker_at_one_place_ends_after_five_tries(
    services, job, keep_all, steps
):
    going(services, job, 5, 6, 7)
    for _ in range(queue.ATTEMPTS - 1):
        assert going(services, job, *steps) == 7
    row = run(services, job, never)
    assert (row.state, row.attempts, row.checkpoint) == (JobState.failed, queue.ATTEMPTS, None)
    assert row.error == {
        "code": "attempts-exhausted",
        "detail": "its worker was lost 5 times after step 7",
    }


@pytest.mark.parametrize(
    "damage",
    [lambda path: path.unlink(), lambda path: path.write_bytes(b"")],
    ids=["gone", "damaged"],
)
def test_a_job_whose_checkpoint_cannot_be_read_begins_anew_goes_on_from_there_and_gains_no_tries(
    services, job, keep_all, damage
):
    def lose_it() -> None:
        (name,) = files(services)
        damage(services.blobs.root / name[:2] / name)

    going(services, job, 5, 6)
    lose_it()
    assert going(services, job, 1, 2) is None
    assert going(services, job) == 2
    for _ in range(queue.ATTEMPTS - 3):
        lose_it()
        assert going(services, job, 1, 2) is None
    row = run(services, job, never)
    assert (row.state, row.error["code"]) == (JobState.failed, "attempts-exhausted")


def test_progress_goes_on_from_the_checkpoint(services, job):
    going(services, job, 5)

    def work(services, row, progress):
        assert progress.resume() is not None
        progress(0, 10)  # a sign of life, before the first step
        return Done({})

    assert run(services, job, work).progress == {"done": 5, "total": 10}


def test_states_are_kept_seldom_but_for_the_first_that_is_further_than_any_before(services, job):
    assert going(services, job, 0, 1, 2, 3) is None
    assert going(services, job, 0, 1, 2, 3) == 1
    assert resumed(services, job) == 2  # 0: the first of its try; 2: beyond 1


def test_a_checkpoint_takes_a_small_share_of_the_time(services, job, monkeypatch):
    monkeypatch.setattr(queue, "CHECKPOINT_EVERY_S", 0)
    monkeypatch.setattr(queue, "CHECKPOINT_SHARE", 1e-9)  # after one, ages pass
    assert going(services, job, 1, 2, 3) is None
    assert resumed(services, job) == 1


def test_only_the_last_checkpoint_is_on_disk(services, job, keep_all):
    going(services, job, *range(1, 10))
    assert files(services) == {again(services, job).checkpoint}


def test_jobs_in_the_same_state_have_files_of_their_own(services, job, keep_all):
    other = queue.submit(services, PROJECT, JobKind.bootstrap, {"x": 1})
    for each in (job, other):
        going(services, each, 1)
    assert len(files(services)) == 2
    going(services, job, 2)
    assert resumed(services, other) == 1


def test_a_sweep_spares_the_checkpoint_of_an_unfinished_job_and_takes_an_ended_ones(
    services, job, keep_all
):
    going(services, job, 1)
    age(services)
    assert blob_sweep.sweep_blobs(services) == 0
    assert resumed(services, job) == 1
    assert blob_sweep.sweep_blobs(services) == 1
    assert files(services) == set()


@pytest.mark.parametrize("sign_of_life", [False, True])
def test_a_stopping_worker_keeps_the_last_state_however_young_the_one_before(
    services, job, sign_of_life
):
    stopping = threading.Event()

    def work(services, row, progress):
        for step in range(1, 5):
            progress.checkpoint(
                step, at(step)
            )  # the first is kept at once, the others are too young
            progress(step, 10)
            if step == 3:
                stopping.set()
                if sign_of_life:
                    progress(0, 10)
        raise AssertionError("the report should have stopped it")

    row = run(services, job, work, stopping=stopping.is_set)
    assert (row.state, row.attempts) == (JobState.queued, 0)
    assert resumed(services, job) == (3 if sign_of_life else 4)


def test_a_try_that_goes_on_remembers_what_was_told(services, job):
    stopping = threading.Event()

    def first(services, row, progress):
        progress(4, 10, {"agreement": 0.5})
        stopping.set()
        progress.checkpoint(4, at(4))
        progress(4, 10)

    def second(services, row, progress):
        assert progress.resume() is not None
        progress(0, 10)
        return Done({})

    run(services, job, first, stopping=stopping.is_set)
    assert run(services, job, second).progress == {"done": 4, "total": 10, "agreement": 0.5}


def test_a_worker_whose_job_was_taken_over_keeps_nothing_and_deletes_nothing(
    services, job, keep_all
):
    went_on = []

    def first(services, row, progress):
        progress.checkpoint(5, at(5))
        went_on.append(True)

    def second(services, row, progress):
        progress.checkpoint(5, at(5))  # the same state: the same file
        raise StorageUnavailable("later")

    row = taken_over(services, job, first, second)
    assert (row.state, row.furthest, went_on) == (JobState.queued, 5, [])
    assert resumed(services, job) == 5


def test_a_state_that_a_job_cannot_go_on_from_is_not_tried_twice(services, job):
    going(services, job, 5)

    def work(services, row, progress):
        if progress.resume() is not None:
            raise KeyError("what an older version called otherwise")
        return Done({"answer": 1})

    assert run(services, job, work).state == JobState.queued
    assert run(services, job, work).state == JobState.succeeded


def test_a_fault_after_a_newer_checkpoint_leaves_it(services, job):
    going(services, job, 5)

    def work(services, row, progress):
        progress.resume()
        progress.checkpoint(6, at(6))
        raise ZeroDivisionError

    run(services, job, work)
    assert resumed(services, job) == 6


def test_faults_at_one_place_end_a_job_that_keeps_checkpoints(services, job, keep_all):
    turns = []

    def work(services, row, progress):
        begun = step_of(progress.resume()) or 0
        turns.append(begun)
        for step in range(begun + 1, 10):
            progress.checkpoint(step, at(step))
        raise ZeroDivisionError

    while run(services, job, work).state == JobState.queued:
        assert len(turns) < 3 * queue.ATTEMPTS
    assert again(services, job).error["code"] == "internal"
    assert turns[:4] == [0, 9, 0, 9]


def test_a_methods_steps_are_its_jobs_progress_and_where_it_may_be_interrupted_its_checkpoints(
    services, job
):
    def work(services, row, progress):
        on_step = bootstrap.Listener(progress)
        on_step(Step(0, 3, {"loss": 1.0}))
        assert again(services, row).checkpoint is None
        on_step(Step(1, 3, {"loss": 0.5}, at(1)))
        on_step(Step(3, 3, {"loss": 0.25}))
        raise StorageUnavailable("later")

    assert run(services, job, work).progress == {"done": 3, "total": 3, "loss": 0.25}
    assert resumed(services, job) == 1


def test_a_full_disk_costs_checkpoints_and_not_the_job(services, job):
    def work(services, row, progress):
        services.blobs.root.rename(services.blobs.root.with_name("away"))
        services.blobs.root.touch()  # a file where the folder should be: nothing can be written below it
        try:
            for step in range(1, 4):
                progress.checkpoint(step, at(step))
        finally:
            services.blobs.root.unlink()
            services.blobs.root.with_name("away").rename(services.blobs.root)
        return Done({"answer": 1})

    row = run(services, job, work)
    assert (row.state, row.result, row.checkpoint) == (JobState.succeeded, {"answer": 1}, None)


# --- cancelled ------------------------------------------------------------------------------------


@pytest.mark.parametrize("tried", [False, True])
def test_a_waiting_job_is_cancelled_at_once_never_runs_again_and_forgets_its_checkpoint(
    services, job, tried
):
    if tried:
        going(services, job, 1)
        hand_back(services, again(services, job).lease)
        assert again(services, job).checkpoint is not None
    assert queue.cancel(services, PROJECT, job.id).state == JobState.cancelled
    assert not turn(services, never)
    row = again(services, job)
    assert (row.state, row.attempts, row.checkpoint) == (JobState.cancelled, 0, None)
    assert row.finished_at is not None


def test_a_running_job_learns_at_its_next_report_that_it_should_stop_and_forgets_its_checkpoint(
    services, job
):
    def work(services, row, progress):
        progress.checkpoint(1, at(1))
        assert queue.cancel(services, PROJECT, row.id).state == JobState.running
        progress(10, 10, {})
        raise AssertionError("the report should have stopped it")

    row = run(services, job, work)
    assert (row.state, row.result, row.error, row.checkpoint) == (
        JobState.cancelled,
        None,
        None,
        None,
    )


def test_a_lost_worker_takes_a_cancelled_job_along(services, job):
    going(services, job, 1)
    assert queue.cancel(services, PROJECT, job.id).state == JobState.running
    row = run(services, job, never)
    assert (row.state, row.result, row.checkpoint) == (JobState.cancelled, None, None)
    assert row.finished_at is not None


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
def test_a_finished_job_cannot_be_cancelled(services, job, state):
    alter(services, job, state=state, finished_at=tables.now())
    with pytest.raises(errors.JobFinished, match=state):
        queue.cancel(services, PROJECT, job.id)
    assert not again(services, job).cancel_requested


def test_a_job_is_its_projects_own(services, job):
    with pytest.raises(errors.JobNotFound):
        queue.cancel(services, "other", job.id)
    assert again(services, job).state == JobState.queued


# --- leases ---------------------------------------------------------------------------------------


def taken_over(
    services: Services, job: tables.JobRow, first: queue.Run, second: queue.Run
) -> tables.JobRow:
    """`first` runs under a lease that has ended already; while it runs, another worker takes the job over by `second`."""
    silent = replace(services, lease_s=-1.0)

    def slow(services: Services, row: tables.JobRow, progress: queue.Progress) -> Done:
        run(services, job, second)
        return first(services, row, progress)

    return run(silent, job, slow)


@pytest.mark.parametrize(
    "late",
    [
        lambda services, row, progress: Done(
            {"by": "first"}, keep=lambda session: session.add(encoder("first"))
        ),
        failing(NameTaken("late")),
        failing(ZeroDivisionError()),
        failing(StorageUnavailable("late")),
        failing(queue.Cancelled()),
        failing(queue.HandedBack()),
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
    assert (row.state, row.result, row.attempts, row.error) == (
        JobState.succeeded,
        {"by": "second"},
        2,
        None,
    )
    assert row.progress == {}
    assert encoders(services) == ["second"]


def test_of_two_workers_that_finish_one_job_at_once_exactly_one_has_an_effect(services, job):
    together, started = threading.Barrier(2), threading.Event()

    def worker(name: str, before: Callable[[], object] = lambda: None) -> queue.Run:
        def work(services: Services, row: tables.JobRow, progress: queue.Progress) -> Done:
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
    row = again(services, job)
    assert (row.state, row.result) == (JobState.succeeded, {"by": "second"})
    assert encoders(services) == ["second"]


def test_a_process_renews_the_leases_of_its_running_jobs_only(services, job):
    leases = Leases(services)
    other = queue.submit(services, PROJECT, JobKind.bootstrap, {})
    lose(services, other)

    def work(services, row, progress):
        alter(services, job, lease_until=tables.now() + LONG_AGO)
        leases.renew()
        assert again(services, job).lease_until > tables.now()
        return Done({})

    assert run(services, job, work, leases).state == JobState.succeeded
    assert again(services, other).lease_until < tables.now()
    assert leases.held() == []


def test_a_lost_worker_is_replaced_until_the_tries_are_used_up(services, job):
    for _ in range(queue.ATTEMPTS):
        lose(services, job)
    assert turn(services, never)
    row = again(services, job)
    assert (row.state, row.result, row.error["code"]) == (
        JobState.failed,
        None,
        "attempts-exhausted",
    )
    assert row.attempts == queue.ATTEMPTS
    assert not turn(services, never)


# --- handed back ----------------------------------------------------------------------------------


def test_a_stopping_worker_hands_its_job_back_and_the_try_does_not_count(services, job):
    def work(services, row, progress):
        progress(1, 10, {})
        raise AssertionError("the report should have stopped it")

    for _ in range(queue.ATTEMPTS + 1):
        row = run(services, job, work, stopping=lambda: True)
        assert (row.state, row.attempts, row.lease) == (JobState.queued, 0, None)
    assert run(services, job, well).attempts == 1


def test_a_job_handed_back_in_the_middle_of_a_step_records_nothing_of_its_late_end(services, job):
    leases = Leases(services)

    def work(services, row, progress):
        leases.hand_back()
        return Done({"late": True}, keep=lambda session: session.add(encoder("late")))

    row = run(services, job, work, leases)
    assert (row.state, row.attempts, row.result) == (JobState.queued, 0, None)
    assert encoders(services) == []


def test_handing_back_twice_or_too_late_changes_nothing(services, job):
    lose(services, job)
    lease = again(services, job).lease
    for _ in range(2):
        hand_back(services, lease)
    assert again(services, job).attempts == 0
    run(services, job, well)
    hand_back(services, lease)
    assert again(services, job).state == JobState.succeeded


# --- submitted ------------------------------------------------------------------------------------


def test_a_project_may_have_so_many_unfinished_jobs_and_another_project_its_own(services):
    services = replace(services, limits=Limits(project_jobs=2))
    first, _ = (queue.submit(services, PROJECT, JobKind.bootstrap, {"x": 1}) for _ in range(2))
    with pytest.raises(errors.TooManyJobs) as caught:
        queue.submit(services, PROJECT, JobKind.bootstrap, {})
    assert (caught.value.limit, caught.value.retry_after_s > 0) == (2, True)
    queue.submit(services, "q", JobKind.bootstrap, {})
    run(services, first, well)
    queue.submit(services, PROJECT, JobKind.bootstrap, {})


def test_all_projects_together_may_have_so_many_unfinished_jobs(services):
    services = replace(services, limits=Limits(jobs=2))
    for project in ("p", "q"):
        queue.submit(services, project, JobKind.bootstrap, {})
    with pytest.raises(errors.QueueFull) as caught:
        queue.submit(services, "r", JobKind.bootstrap, {})
    assert caught.value.retry_after_s > 0
    with services.db.transaction() as session:
        assert job_queries.count_unfinished(session, "p") == (1, 2)


def test_workers_are_woken_once_a_job_is_written_down_or_handed_back(services):
    seen: list[list[str]] = []

    def states() -> None:
        with services.db.transaction() as session:
            seen.append(list(session.scalars(select(tables.JobRow.state))))

    listening = replace(services, notify_workers=states)
    job = queue.submit(listening, PROJECT, JobKind.bootstrap, {})
    assert seen == [["queued"]]
    run(listening, job, lambda services, row, progress: progress(1, 2), stopping=lambda: True)
    assert seen == [["queued"], ["queued"]]


def test_a_job_that_is_handed_back_keeps_its_place(services, job):
    other = queue.submit(services, PROJECT, JobKind.bootstrap, {"x": 2})
    turn(services, lambda services, row, progress: progress(1, 2), stopping=lambda: True)
    turn(services, well)
    assert (again(services, job).state, again(services, other).state) == ("succeeded", "queued")


# --- a database that goes away --------------------------------------------------------------------


@pytest.mark.parametrize("flushed", [False, True])
def test_an_end_lost_on_its_way_is_recorded_again_with_what_the_job_made(
    on_postgres, monkeypatch, flushed
):
    monkeypatch.setattr(queue, "BACKOFF_S", 0.01)
    job = queue.submit(on_postgres, PROJECT, JobKind.bootstrap, {})
    made, tries = encoder("made"), []

    def keep(session):
        tries.append(1)
        session.add(made)
        if flushed:
            session.flush()
        if len(tries) == 1:
            end_connections(on_postgres.db)

    row = run(on_postgres, job, lambda *_: Done({}, keep=keep))
    assert (row.state, row.attempts, len(tries)) == (JobState.succeeded, 1, 2)
    assert encoders(on_postgres) == ["made"]


def test_progress_that_cannot_be_recorded_stops_no_job(on_postgres, monkeypatch):
    monkeypatch.setattr("app.storage.db.CONNECT_FOR_S", 0.1)
    job = queue.submit(on_postgres, PROJECT, JobKind.bootstrap, {"x": 1})

    def work(services, row, progress):
        with closed(services.db):
            progress(10, 10, {})
        return well(services, row, progress)

    row = run(on_postgres, job, work)
    assert (row.state, row.progress) == (JobState.succeeded, {})
