"""The lease of a migration: one process at a time works on a store."""

from __future__ import annotations

import pytest

from app.errors import MigrationActive
from app.moves import lease as holding
from app.moves.lease import take_lease
from tests.helpers import again
from tests.moves.moving import Moving
from tests.waiting import until


def test_another_holder_waits_for_the_end_and_a_lost_process_writes_nothing_more(
    moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    with take_lease(moving.services, moving.id) as held:
        with pytest.raises(MigrationActive), take_lease(moving.services, moving.id):
            pass
        held.save(position={"rows": 7}, found={"a": 1})
    row = again(moving.services, moving.row)
    assert (row.position, row.found, row.lease) == ({"rows": 7}, {"a": 1}, None)
    monkeypatch.setattr(holding, "LEASE_S", -1.0)
    with take_lease(moving.services, moving.id) as lost:
        monkeypatch.undo()
        with take_lease(moving.services, moving.id) as held:
            assert held.position == {"rows": 7}
            held.save(position={"rows": 9})
            with pytest.raises(MigrationActive):
                lost.save(position={"rows": 8})
    assert again(moving.services, moving.row).position == {"rows": 9}


def test_a_hold_is_renewed(moving: Moving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "LEASE_RENEWED_S", 0.05)
    with take_lease(moving.services, moving.id):
        first = again(moving.services, moving.row).lease_until
        until(lambda: again(moving.services, moving.row).lease_until > first)
