"""Turns at what is scarce, who is refused one, and calls of which one is made for all."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from app.errors import DatabaseUnavailable, Overloaded, TooMuchAtOnce
from app.turns import SingleFlight, Turns
from tests.waiting import until


def holding(turns: Turns, project: str, most: int = 100) -> tuple[ExitStack, int]:
    """Takes as many turns as the project gets, at most `most`."""
    held = ExitStack()
    for count in range(most):
        try:
            held.enter_context(turns.take(project))
        except (TooMuchAtOnce, Overloaded):
            return held, count
    return held, most


def test_each_project_that_takes_all_it_gets_leaves_half_of_the_rest_to_the_others():
    turns = Turns("tests", 16)
    with ExitStack() as every:
        counts = []
        for project in "abcde":
            held, count = holding(turns, project)
            every.enter_context(held)
            counts.append(count)
        assert counts == [8, 4, 2, 1, 1]
        with pytest.raises(TooMuchAtOnce, match="has 8 of the server's 16 tests"):
            turns.take("a").__enter__()
        with pytest.raises(Overloaded, match="other projects have 16 of its 16 tests"):
            turns.take("f").__enter__()
    assert turns.held == 0
    assert holding(turns, "a")[1] == 8
    single = Turns("tests", 1)
    with single.take("a"), pytest.raises(Overloaded):
        single.take("b").__enter__()


def test_amounts_are_shared_alike():
    turns = Turns("bytes", 1000)
    with turns.take("a", amount=400), turns.take("a", amount=100):
        with pytest.raises(TooMuchAtOnce):
            turns.take("a", amount=1).__enter__()
        with turns.take("b", amount=250), pytest.raises(TooMuchAtOnce):
            turns.take("b", amount=1).__enter__()
    assert turns.held == 0


def test_the_next_turn_is_for_the_project_that_was_served_longest_ago():
    turns, order = Turns("tests", 1, waiting=9), []

    def work(project: str) -> None:
        with turns.take(project, 30):
            order.append(project)

    with ThreadPoolExecutor(9) as pool, turns.take("a"):
        for place, project in enumerate("aaabbc"):
            pool.submit(work, project)
            until(lambda n=place + 1: waiting(turns) == n)
    assert order == list("bcabaa")


def hold_once(turns: Turns, project: str) -> None:
    with turns.take(project, 30):
        pass


def waiting(turns: Turns) -> int:
    return sum(len(share.waiting) for share in turns._shares.values())


def test_a_project_may_not_fill_the_places_to_wait_and_a_first_caller_always_waits():
    turns = Turns("tests", 1, waiting=4)
    with ThreadPoolExecutor(9) as pool, ExitStack() as first:
        first.enter_context(turns.take("a"))
        waits = [pool.submit(hold_once, turns, project) for project in "aabcd"]
        until(lambda: waiting(turns) == 5)
        with pytest.raises(TooMuchAtOnce):
            turns.take("a", 30).__enter__()
        first.close()
        assert [wait.result() for wait in waits] == [None] * 5


def test_who_waits_too_long_is_refused_and_its_place_is_free():
    turns = Turns("tests", 1, waiting=2)
    with turns.take("a"):
        with pytest.raises(Overloaded):
            turns.take("b", 0.01).__enter__()
        with pytest.raises(TooMuchAtOnce):
            turns.take("a", 0.01).__enter__()
        assert waiting(turns) == 0


# --- one call for all ---------------------------------------------------------------------------


def waiters(flight: SingleFlight, key: str) -> int:
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
        until(lambda: calls and waiters(flight, "a") == 7)
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
        until(lambda: made and waiters(flight, "a") == 2)
        go.set()
        assert {type(each.exception()) for each in failed} == {type(error)}
    assert len(made) == calls
