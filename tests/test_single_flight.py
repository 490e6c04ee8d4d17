"""Of threads that need one value, one makes it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.errors import DatabaseUnavailable
from app.turns import SingleFlight
from tests.waiting import until


def waiting(flight: SingleFlight, key: str) -> int:
    """The number of threads that wait for a call."""
    return len(flight._running[key]._condition._waiters)


def test_threads_that_wait_share_one_call_and_other_keys_wait_for_nobody():
    flight, go, calls = SingleFlight(), threading.Event(), []

    def slow() -> str:
        calls.append(1)
        assert go.wait(60)
        return "made"

    with ThreadPoolExecutor(8) as pool:
        found = [pool.submit(flight.run, "a", slow) for _ in range(8)]
        until(lambda: calls and waiting(flight, "a") == 7)
        assert flight.run("b", lambda: "other") == "other"
        go.set()
        assert [each.result() for each in found] == ["made"] * 8
    assert calls == [1]
    assert flight.run("a", lambda: "anew") == "anew"


@pytest.mark.parametrize(
    ("error", "calls"), [(ZeroDivisionError(), 3), (DatabaseUnavailable("x"), 1)]
)
def test_who_waited_for_an_error_tries_alone_unless_it_is_an_error_for_all(error, calls):
    flight, go, made = SingleFlight(), threading.Event(), []

    def fail() -> None:
        made.append(1)
        assert go.wait(60)
        raise error

    with ThreadPoolExecutor(3) as pool:
        failed = [pool.submit(flight.run, "a", fail) for _ in range(3)]
        until(lambda: made and waiting(flight, "a") == 2)
        go.set()
        assert {type(each.exception()) for each in failed} == {type(error)}
    assert len(made) == calls
