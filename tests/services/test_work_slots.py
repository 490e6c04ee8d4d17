"""Limits of heavy work."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.errors import (
    Overloaded,
)
from app.services.context import WorkSlots


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
        while turns._places._value:  # until it waits
            time.sleep(0.001)
        with pytest.raises(Overloaded), turns.take(30):  # it may not even wait
            pass
        free.set()
        first.result()
        second.result()
    with turns.take(0.01):
        pass
