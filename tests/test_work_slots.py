"""Limits of heavy work."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.context import WorkSlots
from app.errors import (
    Overloaded,
)


def test_work_that_keeps_all_cores_busy_takes_turns_and_sends_away_who_would_only_wait():
    turns = WorkSlots("tested", at_once=1, waiting=1)
    entered, free = threading.Event(), threading.Event()

    def work() -> None:
        with turns.take(None):
            entered.set()
            free.wait(30)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(work)
        assert entered.wait(30)
        with pytest.raises(Overloaded), turns.take(0.01):  # it may wait, and is not let in in time
            pass
        second = pool.submit(work)
        while not turns._waiting:  # until it waits
            time.sleep(0.001)
        with pytest.raises(Overloaded), turns.take(30):  # it may not even wait
            pass
        free.set()
        first.result()
        second.result()
    with turns.take(0.01):
        pass


def test_a_project_works_once_at_a_time_and_others_do_not_wait_for_it():
    slots = WorkSlots("tested", at_once=2, waiting=0)
    with slots.take(0.01, "a"):
        with pytest.raises(Overloaded), slots.take(0.01, "a"):
            pass
        with slots.take(0.01, "b"), pytest.raises(Overloaded), slots.take(0.01, "c"):
            pass
        with slots.take(0.01, "c"):
            pass
    with slots.take(0.01, "a"):
        pass


def test_the_next_slot_is_for_the_project_that_was_served_longest_ago():
    slots = WorkSlots("tested", at_once=1, waiting=9)
    order: list[str] = []

    def work(project: str) -> None:
        with slots.take(None, project):
            order.append(project)

    with ThreadPoolExecutor(5) as pool, slots.take(None, "a"):
        for place, project in enumerate("aaabb"):
            pool.submit(work, project)
            while len(slots._waiting) <= place:
                time.sleep(0.001)
    assert "".join(order) == "babaa"
