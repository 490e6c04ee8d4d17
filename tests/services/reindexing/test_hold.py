"""The hold of a reindexing, on both databases: one process at a time works on a store."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from app.errors import ReindexingActive
from app.services.context import Services
from app.services.reindexing import hold as holding
from app.services.reindexing.hold import HELD, hold
from app.storage import tables
from tests.pgvector_server import PgvectorServer
from tests.services.helpers import again, alter
from tests.services.reindexing.moving import Moving, begin_moving


@pytest.fixture
def moving(services: Services, pgvector_server: PgvectorServer) -> Moving:
    return begin_moving(services, pgvector_server)


def test_another_owner_is_refused_until_the_hold_ends(moving: Moving) -> None:
    with hold(moving.services, moving.id, "cutover") as held:
        with (
            pytest.raises(ReindexingActive, match="cutover"),
            hold(moving.services, moving.id, "synchronisation"),
        ):
            pass
        held.save(position={"rows": 7}, found={"a": 1})
        assert held.position == {"rows": 7}
    row = again(moving.services, moving.row)
    assert (row.position, row.found) == ({"rows": 7}, {"a": 1})
    with hold(moving.services, moving.id, "synchronisation") as held:
        assert held.position == {"rows": 7}


@pytest.mark.parametrize("owner", ["cutover", "synchronisation"])
def test_a_second_owner_of_the_same_name_waits_for_the_first(moving: Moving, owner: str) -> None:
    with hold(moving.services, moving.id, owner) as first:
        with pytest.raises(ReindexingActive, match=owner), hold(moving.services, moving.id, owner):
            pass
        first.save(position={"rows": 4})
    with hold(moving.services, moving.id, owner) as held:
        assert held.position == {"rows": 4}


def test_a_waiting_owner_takes_the_hold_when_it_ends(moving: Moving) -> None:
    taken = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        with hold(moving.services, moving.id, "first"):

            def wait() -> None:
                with hold(moving.services, moving.id, "second", wait_s=60):
                    taken.set()

            second = pool.submit(wait)
            assert not taken.wait(0.3)
        second.result(60)
    assert taken.is_set()


def test_the_hold_of_a_lost_process_ends(moving: Moving) -> None:
    ended = (tables.now() - timedelta(seconds=1)).isoformat()
    left = {"token": "t", "owner": "cutover", "until": ended}
    alter(moving.services, moving.row, position={"rows": 3, HELD: left})
    with hold(moving.services, moving.id, "rollback") as held:
        assert held.position == {"rows": 3}


def test_a_job_takes_over_its_own_hold_and_the_lost_attempt_writes_nothing_more(
    moving: Moving,
) -> None:
    with hold(moving.services, moving.id, "job 1") as lost:
        with hold(moving.services, moving.id, "job 1") as held:
            held.save(position={"rows": 2})
            with pytest.raises(ReindexingActive):
                lost.save(position={"rows": 1})
        assert again(moving.services, moving.row).position == {"rows": 2}


def test_a_hold_is_renewed(moving: Moving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "HOLD_RENEWED_S", 0.05)
    renewed = threading.Event()
    with hold(moving.services, moving.id, "job 1"):
        first = again(moving.services, moving.row).position[HELD]["until"]
        for _ in range(200):
            if again(moving.services, moving.row).position[HELD]["until"] > first:
                renewed.set()
                break
            renewed.wait(0.05)
    assert renewed.is_set()


def test_of_many_that_ask_at_once_one_holds_at_a_time(moving: Moving) -> None:
    inside: list[str] = []
    most = 0

    def count(name: str) -> None:
        nonlocal most
        with hold(moving.services, moving.id, name, wait_s=60) as held:
            inside.append(name)
            most = max(most, len(inside))
            held.save(position={"count": held.position.get("count", 0) + 1})
            inside.remove(name)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, [f"owner {n}" for n in range(12)]))
    assert most == 1
    assert again(moving.services, moving.row).position == {"count": 12}
