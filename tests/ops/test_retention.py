"""Which old rows and blobs are deleted, and which never are."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event, func, select, update

from app.context import Services
from app.db import tables
from app.db.cache import Cache
from app.errors import NotFound
from app.ops import retention
from app.translate import estimate
from app.translate import fit as translators
from app.translate.maps import FitRequest
from app.types import JobState
from tests.helpers import CONTEXT, ON_EACH_DATABASE

PROJECT = "p"
REQUEST = FitRequest("a", "b", "s", "ridge", {})


def days_ago(days: float) -> datetime:
    return tables.now() - timedelta(days=days)


def put(services: Services, *rows: tables.Base) -> None:
    with services.db.transaction() as session:
        session.add_all(rows)


def names(services: Services, column: Any) -> set[str]:
    with services.db.transaction() as session:
        return set(session.scalars(select(column)))


def job(kind: str, finished: float | None, state: JobState = JobState.succeeded) -> tables.JobRow:
    """A job of a year ago that ended `finished` days ago."""
    moments = {
        "created_at": days_ago(365),
        "finished_at": None if finished is None else days_ago(finished),
    }
    return tables.JobRow(project=PROJECT, kind=kind, state=state, arguments={}, **moments)


def audit(name: str, days: float) -> tables.AuditRow:
    return tables.AuditRow(
        project=PROJECT,
        action="create",
        resource="head",
        name=name,
        origin="o",
        created_at=days_ago(days),
    )


def test_jobs_and_audit_rows_are_deleted_so_many_days_after_their_end(services):
    states = {state: state for state in ("succeeded", "failed", "cancelled")}
    put(services, *(job(f"old {name}", 31, JobState(state)) for name, state in states.items()))
    put(
        services,
        job("young", 29),
        job("queued", None, JobState.queued),
        job("running", None, JobState.running),
        audit("old", 366),
        audit("young", 364),
    )
    retention.delete_old(services)
    assert names(services, tables.JobRow.kind) == {"young", "queued", "running"}
    assert names(services, tables.AuditRow.name) == {"young"}


@ON_EACH_DATABASE
def test_many_rows_are_deleted_in_statements_of_bounded_size(services, monkeypatch):
    monkeypatch.setattr(retention, "DELETE_BATCH", 10)
    put(services, *(audit(str(number), 366) for number in range(25)))
    deleted: list[int] = []

    def count(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("DELETE FROM audit"):
            deleted.append(cursor.rowcount)

    event.listen(services.db.engine, "after_cursor_execute", count)
    retention.delete_old(services)
    assert deleted == [10, 10, 5]


def test_a_stop_is_heard_between_two_batches(services, monkeypatch):
    monkeypatch.setattr(retention, "DELETE_BATCH", 10)
    put(services, *(audit(str(number), 366) for number in range(25)))
    retention.delete_old(services, stopping=iter([False, False, *[True] * 5]).__next__)
    assert len(names(services, tables.AuditRow.name)) == 15


def test_rows_that_another_process_is_deleting_are_not_waited_for(on_postgres):
    put(on_postgres, audit("theirs", 367), audit("ours", 366))
    with on_postgres.db.transaction() as session:
        theirs = select(tables.AuditRow).where(tables.AuditRow.name == "theirs").with_for_update()
        session.execute(theirs)
        retention.delete_old(on_postgres)
        assert names(on_postgres, tables.AuditRow.name) == {"theirs"}


# --- translators ----------------------------------------------------------------------------------


def fitted(services: Services) -> str:
    return translators.fit(
        services, CONTEXT, *translators.find_pair(services, PROJECT, REQUEST), REQUEST
    ).id


def unused_for(services: Services, days: float) -> Services:
    """Make all translators unused for `days`; return a process that has recorded no use yet."""
    with services.db.transaction() as session:
        session.execute(
            update(tables.TranslatorRow).values(used_at=days_ago(days), created_at=days_ago(days))
        )
    return replace(services, cache=Cache(2**20))


def rows(services: Services) -> int:
    with services.db.transaction() as session:
        return session.scalar(select(func.count()).select_from(tables.TranslatorRow)) or 0


def test_a_translator_that_nobody_uses_is_deleted_and_fitted_again_under_the_same_id(
    stocked_services,
):
    content = fitted(stocked_services)
    services = unused_for(stocked_services, 92)
    retention.delete_old(services)
    with pytest.raises(NotFound):
        estimate.find_with_report(services, PROJECT, content)
    assert fitted(services) == content
    assert estimate.find_with_report(services, PROJECT, content).report is not None


@pytest.mark.parametrize(
    ("days", "use"),
    [
        (92, "fitted"),
        (92, "asked about"),
        (90.99, "none"),  # a process writes a use down once a day
    ],
)
def test_a_translator_in_use_is_kept(stocked_services, days, use):
    content = fitted(stocked_services)
    services = unused_for(stocked_services, days)
    if use == "fitted":
        fitted(services)
    elif use == "asked about":
        estimate.find_with_report(services, PROJECT, content)
    retention.delete_old(services)
    assert rows(services) == 1
