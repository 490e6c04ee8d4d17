"""The queue on both databases: who may claim a job, and who may change it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.db import leases, tables
from app.db.session import Database
from app.jobs import queries as jobs
from tests.db.helpers import change

DAY = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def db(empty: Database) -> Database:
    return empty


def put(db: Database, state: str, due: int = 0, **values: Any) -> str:
    """A job due so many minutes after DAY; returns its id."""
    finished = None if state in ("queued", "running") else DAY
    moments = {"due_at": DAY + due * MINUTE, "created_at": DAY, "finished_at": finished}
    row = tables.JobRow(
        **{"project": "p", "kind": "k", "state": state, "arguments": {}, **moments, **values}
    )
    with db.transaction() as session:
        session.add(row)
    return row.id


def read(db: Database, job_id: str) -> tables.JobRow:
    with db.transaction() as session:
        return session.get_one(tables.JobRow, job_id)


def claim(db: Database, lease: str, at: int = 0, *, lease_minutes: float = 0.5) -> str | None:
    """The id of the job claimed so many minutes after DAY."""
    found = claimed(db, lease, at, lease_minutes)
    return None if found is None else found[0].id


def claimed(
    db: Database, lease: str, at: int = 0, lease_minutes: float = 0.5
) -> tuple[tables.JobRow, bool] | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leases, "database_now", lambda session: DAY + at * MINUTE)
        return change(db, jobs.claim_next, lease=lease, seconds=60 * lease_minutes)


def test_the_job_that_is_due_for_longest_is_claimed_first_and_none_that_is_not_due_yet(db):
    late, first, second, later = (put(db, "queued", due) for due in (3, 1, 2, 9))
    assert [claim(db, lease, at=5) for lease in "abcd"] == [first, second, late, None]
    assert claim(db, "e", at=9) is not None
    assert read(db, later).attempts == 0


def test_projects_take_turns_however_many_jobs_one_of_them_queued_first(db):
    many = [put(db, "queued", due) for due in range(4)]
    few = [put(db, "queued", 5 + due, project="q") for due in range(2)]
    found = []
    for place in range(6):
        found.append(claim(db, lease := f"{place}", at=10 + place, lease_minutes=30))
        change(db, jobs.change_leased, lease, state="succeeded", finished_at=DAY)
    assert found == [many[0], few[0], many[1], few[1], many[2], many[3]]


def test_a_free_worker_takes_a_job_of_the_project_with_the_fewest_running_jobs(db):
    for due in range(4):
        put(db, "queued", due)
    assert [claim(db, lease, at=5, lease_minutes=30) for lease in "ab"].count(None) == 0
    brief = [put(db, "queued", 6, project="q") for _ in range(2)]
    for lease, at in (("c", 7), ("d", 8)):  # the last one served is q, and p has two running
        assert claim(db, lease, at=at, lease_minutes=30) in brief
        change(db, jobs.change_leased, lease, state="succeeded", finished_at=DAY)


def test_a_claimed_job_runs_under_its_lease_and_is_claimed_again_once_that_has_ended(db):
    job_id = put(db, "queued")
    row, was_lost = claimed(db, "a", lease_minutes=1)
    assert (row.id, was_lost) == (job_id, False)
    for each in (row, read(db, job_id)):
        assert (each.state, each.lease, each.attempts) == ("running", "a", 1)
        assert (each.lease_until, each.started_at, each.version) == (DAY + MINUTE, DAY, 1)
    assert claim(db, "b", at=1) is None
    row, was_lost = claimed(db, "b", at=2)
    assert (row.id, row.attempts, was_lost) == (job_id, 2, True)


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
def test_a_finished_job_is_claimed_by_nobody_and_never_changes(db, state):
    job_id = put(db, state, lease="a", lease_until=DAY)
    assert claim(db, "late", at=9) is None
    change(db, jobs.cancel, job_id, now=DAY)
    assert not change(db, jobs.change_leased, "a", state="running")
    assert change(db, jobs.asked_to_stop, "a") is None
    row = read(db, job_id)
    assert (row.state, row.attempts, row.version, row.cancel_requested) == (state, 0, 0, False)


def test_of_many_claims_at_once_each_gets_a_job_of_its_own(db):
    ids = {put(db, "queued", number) for number in range(12)}
    with ThreadPoolExecutor(6) as pool:
        leases = map(str, range(15))
        found = list(pool.map(lambda n: change(db, jobs.claim_next, lease=n, seconds=60), leases))
    assert sorted(row.id for row, _ in filter(None, found)) == sorted(ids)


def test_on_postgresql_a_row_that_another_worker_is_taking_is_skipped_without_waiting(postgres):
    first, second = (put(postgres, "queued", due) for due in (0, 1))
    with postgres.transaction() as session:
        row, _ = jobs.claim_next(session, lease="a", seconds=60)
        assert row.id == first
        assert claim(postgres, "b", at=5) == second
        assert claim(postgres, "c", at=5) is None


def test_only_the_lease_a_job_runs_under_changes_it(db):
    job_id = put(db, "queued")
    claim(db, "first")
    claim(db, "second", at=1)
    changed = jobs.change_leased
    assert not change(db, changed, "first", state="succeeded", result={"by": "first"})
    assert change(db, jobs.leased_job, "first") is None
    assert change(db, changed, "second", progress={"done": 1})
    assert change(db, changed, "second", state="succeeded", finished_at=DAY)
    assert not change(db, changed, "second", state="failed")  # it has ended
    assert (read(db, job_id).state, read(db, job_id).result) == ("succeeded", None)


def test_every_change_that_a_client_can_see_counts_the_version_up(db):
    job_id = put(db, "queued")
    seen = [read(db, job_id).version]
    for step in (
        lambda: claim(db, "first"),
        lambda: change(db, jobs.change_leased, "first", progress={"done": 1}),
        lambda: change(db, jobs.cancel, job_id, now=DAY),
        lambda: claim(db, "second", at=1),
        lambda: change(db, jobs.renew_leases, ["second", "unknown"], seconds=60),  # none sees it
    ):
        step()
        seen.append(read(db, job_id).version)
    assert seen == [0, 1, 2, 3, 4, 4]
    assert read(db, job_id).cancel_requested
