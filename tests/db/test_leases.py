"""Leases on both databases: one holder at a time, by the database's clock."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from app.db import leases, tables
from app.db.session import Database
from tests.db.helpers import change

Row = tables.JobRow


@pytest.fixture
def row(empty: Database) -> str:
    row = Row(project="p", kind="fit", state="queued", arguments={})
    with empty.transaction() as session:
        session.add(row)
    return row.id


def claim(db: Database, row: str, lease: str, *, seconds: float = 60) -> bool:
    return change(db, leases.claim, Row, row, lease, seconds=seconds)


def test_a_row_has_one_lease_until_it_ends_or_is_released(empty, row):
    assert claim(empty, row, "first")
    assert not claim(empty, row, "second")
    change(empty, leases.release, Row, "second")  # of another holder
    assert not claim(empty, row, "second")
    change(empty, leases.release, Row, "first")
    assert claim(empty, row, "second", seconds=-1)  # it has ended already
    assert claim(empty, row, "third", seconds=-1)
    assert change(empty, leases.renew, Row, ["second"], seconds=60) == 0
    assert change(empty, leases.renew, Row, ["third", "other"], seconds=60) == 1
    assert not claim(empty, row, "fourth")


def test_of_many_claims_at_once_one_succeeds(empty, row):
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda number: claim(empty, row, str(number)), range(24)))
    assert sum(taken) == 1


@pytest.mark.parametrize("ahead", [timedelta(hours=1), timedelta(hours=-1)])
def test_machines_whose_clocks_differ_agree_on_who_holds_a_row(postgres, monkeypatch, ahead):
    """The clock of the database counts, and no machine's own."""
    row = Row(project="p", kind="fit", state="queued", arguments={})
    with postgres.transaction() as session:
        session.add(row)
    assert claim(postgres, row.id, "first")
    for place in (leases, tables):
        monkeypatch.setattr(place, "now", lambda: datetime.now(UTC) + ahead)
    assert not claim(postgres, row.id, "second")
    change(postgres, leases.release, Row, "first")
    assert claim(postgres, row.id, "second")
    monkeypatch.undo()
    assert not claim(postgres, row.id, "third")
