"""The lease of a migration, on both databases: one process at a time works on a store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from app.context import Services
from app.errors import MigrationActive
from app.moves import lease as holding
from app.moves.lease import take_lease
from tests.helpers import ON_EACH_DATABASE, again
from tests.moves.moving import Moving, begin_moving
from tests.pgvector_server import PgvectorServer
from tests.waiting import until


@pytest.fixture
def moving(services: Services, pgvector_server: PgvectorServer) -> Moving:
    return begin_moving(services, pgvector_server)


def test_another_holder_is_refused_until_the_hold_ends(moving: Moving) -> None:
    with take_lease(moving.services, moving.id) as held:
        with pytest.raises(MigrationActive), take_lease(moving.services, moving.id):
            pass
        held.save(position={"rows": 7}, found={"a": 1})
        assert held.position == {"rows": 7}
    row = again(moving.services, moving.row)
    assert (row.position, row.found, row.lease) == ({"rows": 7}, {"a": 1}, None)
    with take_lease(moving.services, moving.id) as held:
        assert held.position == {"rows": 7}


def test_the_hold_of_a_lost_process_ends_and_it_writes_nothing_more(
    moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holding, "LEASE_S", -1.0)
    with take_lease(moving.services, moving.id) as lost:
        monkeypatch.undo()
        with take_lease(moving.services, moving.id) as held:
            held.save(position={"rows": 2})
            with pytest.raises(MigrationActive):
                lost.save(position={"rows": 1})
    assert again(moving.services, moving.row).position == {"rows": 2}


def test_a_hold_is_renewed(moving: Moving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "LEASE_RENEWED_S", 0.05)
    with take_lease(moving.services, moving.id):
        first = again(moving.services, moving.row).lease_until
        until(lambda: again(moving.services, moving.row).lease_until > first)


@ON_EACH_DATABASE
def test_of_many_that_ask_at_once_one_holds_at_a_time(moving: Moving) -> None:
    inside: list[int] = []
    most = 0

    def count(number: int) -> None:
        nonlocal most
        with take_lease(moving.services, moving.id, wait_s=60) as held:
            inside.append(number)
            most = max(most, len(inside))
            held.save(position={"count": held.position.get("count", 0) + 1})
            inside.remove(number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, range(12)))
    assert most == 1
    assert again(moving.services, moving.row).position == {"count": 12}
