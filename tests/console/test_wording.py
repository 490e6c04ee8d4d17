"""What a store's page says in each state of a migration, and which call is next."""

from __future__ import annotations

from typing import Any

import pytest

from app.console.formats import disk, money
from app.console.overview import next_call
from app.console.wording import CALLS, button_of, in_own_words, say_problem, say_state
from app.db.tables import EncoderRow, JobRow, MigrationRow, StoreRow, now
from app.moves.service import MigrationStatus
from app.types import JobState, MigrationState

LIMITS = {"price_per_million_tokens": 0.02, "max_price": 3.0}
PLAN = {"limits": LIMITS, "rows": 10, "cost": {"tokens": 152_000_000}}
AWAY = {"waiting": {"detail": "The endpoint returned status 503.", "again_s": 8, "pauses_s": 90}}
WAITS = "status 503. The run asks again in 8 s, and pauses after 90 s without"


def move(state: str, job: dict[str, Any] | None = None, **values: Any) -> MigrationStatus:
    """A migration of a table, and its job if that is not finished."""
    store = StoreRow(name="docs", kind="pgvector", encoder=EncoderRow(name="old"))
    row = MigrationRow(
        **{"state": state, "store": store, "position": {}, "found": {}, "plan": PLAN} | values
    )
    return MigrationStatus(row, None if job is None else JobRow(**job))


def working(action: str, phase: str, **facts: Any) -> dict[str, Any]:
    return {
        "state": JobState.running,
        "arguments": {"action": action},
        "progress": {"phase": phase, **facts},
    }


PASSED = {"verify": {"passed": True}}


@pytest.mark.parametrize(
    ("status", "call", "said"),
    [
        (move("planned"), "run", "Nothing is written to the store yet."),
        (move("paused"), "run", "It is paused"),
        (move("filled"), "verify", "Clients still see the old ones."),
        (move("filled", found=PASSED), "cutover", "Clients still see the old ones."),
        (move("cut-over", found=PASSED), None, "Roll back shows the old vectors again"),
        (move("rolled-back", found=PASSED), "cutover", "Clients see the old vectors again."),
        (move("finished", ended_at=now()), None, "Nothing is left to do."),
        (
            move("finished", store=StoreRow(kind="faiss"), id="1a2b3c4d" * 4, ended_at=now()),
            None,
            "Your application opens the new file, whose name has 1a2b3c4d.",
        ),
        (move("filled", position={"step": "cutover"}), "cutover", "Cut over was interrupted."),
        (move("cut-over", position={"step": "rollback"}), "rollback", "Roll back was interrupted."),
        (move("running", working("run", "sweep")), None, "Rows get new vectors"),
        (move("running", working("run", "changes")), None, "Rows that clients wrote meanwhile"),
        (move("running", working("run", "anchors")), None, "Rows from all over the store"),
        (move("running", working("run", "waiting", **AWAY)), None, WAITS),
        (move("filled", working("verify", "rows")), None, "Both sides of the store"),
        (
            move("running", {**working("run", "sweep"), "state": JobState.queued}),
            None,
            "waits for a worker",
        ),
    ],
)
def test_each_state_has_a_sentence_and_at_most_one_next_call(
    status: MigrationStatus, call: str | None, said: str
) -> None:
    assert said in say_state(status)
    assert next_call(status) == call


def test_rows_that_are_written_are_not_counted_as_ahead_again() -> None:
    job = working("run", "sweep", done=1600)  # older than the position
    position = {"phase": "sweep", "rows": 1500, "total": 2000}
    assert move("running", job, position=position).progress["rows"] == 1600


def test_what_stopped_a_migration_says_what_to_do() -> None:
    reached = move("paused", error={"code": "limit-reached", "detail": "Raise `max_price`."})
    assert say_problem(reached) == ("The limit is reached.", "Raise `max_price`.")
    said = in_own_words("The next rows would cost more than `max_price`. Raise `max_price` to 3.")
    assert said.endswith("more than the limit. Raise “Pause before it costs more than” to 3.")
    away = move("paused", error={"code": "encoder-unavailable", "detail": "It stays away."})
    assert say_problem(away) == ("The encoder gives no vectors.", "It stays away.")
    other = move("paused", error={"code": "internal", "detail": "the log says why"})
    assert say_problem(other) == ("It stopped: internal.", "the log says why")
    assert say_problem(move("paused")) is None
    assert button_of(CALLS["run"], MigrationState.planned) == "Run"
    assert button_of(CALLS["run"], MigrationState.paused) == "Continue"
    assert button_of(CALLS["finish"], MigrationState.paused) == "Finish"


def test_prices_have_digits_that_say_something_and_disk_has_a_unit() -> None:
    assert [*map(money, (0, 0.00105, 12.3, 1234.5))] == ["0.00", "0.0010", "12.30", "1,234.50"]
    assert [disk(each) for each in (900, 3.7e6, 2e9)] == ["1 kB", "3.7 MB", "2.0 GB"]
