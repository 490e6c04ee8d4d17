"""Cutover, rollback, finish and abandon: each has its effect once, whatever stops it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import psycopg
import pytest

from app import errors
from app.context import RequestContext, WorkTurns
from app.moves import service as migrations
from app.moves import steps
from app.moves.context import clients_see_new, open_migration
from app.moves.lease import take_lease
from tests.helpers import CONTEXT, again, alter, audited
from tests.moves.moving import (
    NEW_DIM,
    OLD_DIM,
    ROWS,
    Moving,
    expected,
    old_vectors,
    use_a_poor_index,
)
from tests.waiting import slack, until

#: of one project at once
STEPS = WorkTurns().steps.at_once // 2


def take(moving: Moving, step: str) -> migrations.MigrationStatus:
    return steps.take_step(moving.services, CONTEXT, moving.id, step)  # type: ignore[no-any-return]


def sees(moving: Moving, dim: int) -> bool:
    """Whether clients see as many rows as ever, with vectors of so many dimensions."""
    rows = moving.read()
    return len(rows) == ROWS and {len(vector) for vector, _ in rows.values()} == {dim}


def steps_of(moving: Moving) -> list[str]:
    return [row.action for row in audited(moving.services)[::-1] if row.resource == "migration"]


def test_a_cutover_that_breaks_a_trigger_needs_force(verified: Moving) -> None:
    function = f"fill_{verified.table}"
    verified.execute(
        f"CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.embedding "
        f"= array_fill(.5::real, ARRAY[{OLD_DIM}])::vector({OLD_DIM}); RETURN NEW; END $$"
    )
    verified.execute(
        f"CREATE TRIGGER fills BEFORE UPDATE ON {{}} FOR EACH ROW EXECUTE FUNCTION {function}()"
    )
    with pytest.raises(errors.OldSizeTrigger, match="fills"):
        take(verified, "cutover")
    assert (verified.state, sees(verified, OLD_DIM)) == ("filled", True)
    steps.take_step(verified.services, CONTEXT, verified.id, "cutover", force=True)
    assert sees(verified, NEW_DIM)
    with pytest.raises(psycopg.errors.DataException, match=f"expected {NEW_DIM}"):
        verified.execute("UPDATE {} SET body = 'changed' WHERE id = 1")


def test_a_store_moves_back_and_forth_and_then_belongs_to_the_new_encoder(
    verified: Moving,
) -> None:
    before = verified.read()
    assert take(verified, "cutover").row.state == "cut-over"
    after = verified.read()
    found = np.stack([after[each][0] for each in range(ROWS)])
    assert np.allclose(found, expected(verified, old_vectors(ROWS)), atol=1e-5)
    assert all(after[each][1] == before[each][1] for each in before)
    assert verified.now.next == ["rollback", "finish", "sync", "verify"]
    assert verified.now.row.found["cutover"]["pause_s"] < 5 * slack()
    assert take(verified, "rollback").row.state == "rolled-back"
    again_old = verified.read()
    assert all(np.array_equal(again_old[each][0], before[each][0]) for each in before)
    assert verified.now.row.found["rollback"]["pause_s"] < 5 * slack()
    assert verified.now.next == ["cutover", "sync", "verify", "abandon"]
    take(verified, "cutover")
    found = verified.now.row.found
    failed = {**found["verify"], "passed": False}
    alter(verified.services, verified.now.row, found={**found, "verify": failed})
    assert verified.now.next == ["verify", "rollback", "sync"]
    with pytest.raises(errors.NotVerified, match="so `finish` waits"):
        take(verified, "finish")
    alter(verified.services, verified.now.row, found=found)
    ended = take(verified, "finish")
    assert (ended.row.state, ended.next) == ("finished", [])
    assert ended.row.ended_at is not None
    assert again(verified.services, verified.row.store).encoder.name == "new"
    assert sees(verified, NEW_DIM)
    taken = ["run", "verify", "cutover", "rollback", "cutover", "finish"]
    assert steps_of(verified) == ["create", *taken]


def test_an_abandoned_migration_leaves_the_table_as_it_was(filled: Moving) -> None:
    before = filled.read()
    assert take(filled, "abandon").row.state == "abandoned"
    after = filled.read()
    assert all(np.array_equal(after[each][0], before[each][0]) for each in before)
    assert filled.now.next == []
    assert again(filled.services, filled.row.store).encoder.name == "old"
    with filled.connect() as connection:
        query = "SELECT relname FROM pg_class WHERE relname LIKE %s"
        assert connection.execute(query, [f"%{filled.id[:8]}%"]).fetchall() == []


def test_a_row_without_a_direction_does_not_stop_a_rollback_to_not_null(moving: Moving) -> None:
    moving.execute("ALTER TABLE {} ALTER COLUMN embedding SET NOT NULL")
    moving.do("run")
    moving.do("verify")
    take(moving, "cutover")
    moving.insert(ROWS, np.zeros((1, NEW_DIM), np.float32))
    assert take(moving, "rollback").state == "rolled-back"
    assert not moving.read()[ROWS][0].any()
    with pytest.raises(psycopg.errors.NotNullViolation):
        moving.execute("INSERT INTO {} (id) VALUES (-1)")


def test_a_cutover_needs_a_verification_that_passed(filled: Moving) -> None:
    with pytest.raises(errors.NotVerified, match="Call `verify`") as raised:
        take(filled, "cutover")
    assert raised.value.more["found"] is None
    use_a_poor_index(filled, f"anchorage_{filled.id[:8]}_new")
    filled.do("verify")
    with pytest.raises(errors.NotVerified, match=r"below 0\.900") as raised:
        take(filled, "cutover")
    assert raised.value.more["estimated"]["index_recall"] == 0.9
    assert raised.value.more["found"]["index"]["after"] < 0.8
    assert (filled.state, sees(filled, OLD_DIM)) == ("filled", True)


def test_another_project_finds_no_migration(verified: Moving) -> None:
    with pytest.raises(errors.NotFound):
        steps.take_step(verified.services, RequestContext("other"), verified.id, "cutover")


BEFORE = {"cutover": [], "rollback": ["cutover"], "finish": ["cutover"], "abandon": []}


@pytest.mark.parametrize(
    ("step", "done"),
    [("cutover", 0), ("cutover", 1), ("rollback", 1), ("finish", 0), ("abandon", 1)],
)
def test_a_process_that_ends_in_a_step_leaves_it_to_be_repeated(
    verified: Moving, step: str, done: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in BEFORE[step]:
        take(verified, each)
    begun = verified.state
    kind = type(open_migration(verified.services, verified.row).migration)
    act = getattr(kind, step)

    def end(*arguments: Any) -> None:
        if done:
            act(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(kind, step, end)
        with pytest.raises(KeyboardInterrupt):
            take(verified, step)
    assert (verified.state, verified.now.next) == (begun, [step])
    seen = clients_see_new(verified.services, verified.now.row)
    assert seen == ((step, done) in [("cutover", 1), ("finish", 0)])
    for other in {"cutover", "rollback", "finish", "abandon"} - {step}:
        with pytest.raises(errors.WrongState, match=f"Call `{step}` again"):
            take(verified, other)
    with pytest.raises(errors.WrongState, match=f"Call `{step}` again"):
        verified.queue("verify")
    after = {"cutover": "cut-over", "rollback": "rolled-back"}.get(step, f"{step}ed")
    assert take(verified, step).row.state == after
    assert sees(verified, NEW_DIM if step in ("cutover", "finish") else OLD_DIM)
    assert steps_of(verified).count(step) == 1


def test_steps_that_wait_leave_threads_for_other_requests(moving: Moving) -> None:
    def abandon(_: int) -> str:
        try:
            return take(moving, "abandon").row.state
        except errors.AnchorageError as error:
            return error.code

    with ThreadPoolExecutor(2 * STEPS) as pool:
        with take_lease(moving.services, moving.id):
            calls = [pool.submit(abandon, each) for each in range(2 * STEPS)]
            until(lambda: sum(each.done() for each in calls) == STEPS)
            refused = [each.result() for each in calls if each.done()]
            assert refused == ["too-much-at-once"] * STEPS
        ended = sorted(each.result(60) for each in calls)
    assert ended == ["abandoned", *refused, *["wrong-state"] * (STEPS - 1)]


def test_a_step_that_the_store_refuses_leaves_every_other_call_possible(
    verified: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.stores.pgvector.locks.LOCK_PATIENCE_S", 0.5)

    def refuse(step: str) -> list[str]:
        with verified.connect() as client, client.transaction():
            client.execute(f"SELECT count(*) FROM {verified.table}")  # noqa: S608
            with pytest.raises(errors.StoreUnavailable, match="Other transactions"):
                take(verified, step)
        assert "step" not in verified.now.row.position
        return verified.now.next

    verified.execute("ALTER TABLE {} RENAME COLUMN embedding TO other")
    with pytest.raises((errors.StoreChanged, errors.StoreUnsupported)):
        take(verified, "cutover")
    verified.execute("ALTER TABLE {} RENAME COLUMN other TO embedding")
    assert refuse("cutover") == ["cutover", "sync", "run", "verify", "abandon"]
    assert sees(verified, OLD_DIM)
    take(verified, "cutover")
    for step in ("rollback", "finish"):
        assert refuse(step) == ["rollback", "finish", "sync", "verify"]
    assert sees(verified, NEW_DIM)
    take(verified, "rollback")
    assert sees(verified, OLD_DIM)


def test_a_lost_table_after_a_cutover_is_not_answered_by_an_impossible_advice(
    verified: Moving,
) -> None:
    take(verified, "cutover")
    verified.execute(f"ALTER TABLE anchorage_{verified.id[:8]}_old RENAME TO lost")
    with pytest.raises(errors.StoreChanged, match=r"Restore it; .*`finish` it if it is\."):
        take(verified, "rollback")
    assert verified.now.next == ["rollback", "finish", "sync", "verify"]
    verified.execute(f"ALTER TABLE lost RENAME TO anchorage_{verified.id[:8]}_old")
    assert take(verified, "rollback").row.state == "rolled-back"
