"""Rows of many requests on few threads: each done once, and all of them by turns."""

from __future__ import annotations

import threading
from concurrent.futures import wait
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.errors import OutOfRange
from app.lanes import Lanes

SOON_S = 20


@pytest.fixture
def lanes():
    made = Lanes(2)
    yield made
    made.close()


class Held:
    """A span that waits for permission before each step."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.may = threading.Semaphore(0)

    def __call__(self, start: int, stop: int) -> None:
        self.begun.release()
        assert self.may.acquire(timeout=SOON_S)


def test_all_rows_are_done_exactly_once_whatever_their_number_and_step(lanes):
    @given(rows=st.integers(1, 300), step=st.integers(1, 320))
    def check(rows, step):
        times, spans = torch.zeros(rows, dtype=torch.int32), []

        def span(start, stop):
            spans.append((start, stop))
            times[start:stop] += 1

        lanes.submit(span, rows, step).result(SOON_S)
        assert times.unique().tolist() == [1]
        assert all(0 < stop - start <= step for start, stop in spans)
        assert all(before[1] == after[0] for before, after in pairwise(sorted(spans)))

    check()


def test_a_task_that_fails_stops_and_stops_no_other_and_its_rows_count_from_the_first_of_all(lanes):
    spans = []

    def fails(start, stop):
        spans.append(start)
        if start > 2:
            raise OutOfRange("always", rows=[0])

    failed = [lanes.submit(fails, 10_000, 1) for _ in range(5)]
    broken = lanes.submit(lambda start, stop: 1 / 0, 5, 1)
    done = [lanes.submit(lambda start, stop: None, 1, 1) for _ in range(50)]
    wait([*failed, *done, broken], SOON_S)
    assert all(future.exception(0).rows[0] >= 3 for future in failed)
    assert isinstance(broken.exception(0), ZeroDivisionError)
    assert all(future.result(0) is None for future in done)
    assert len(spans) < 100  # 10,000 each, had they gone on


def test_a_small_task_among_a_huge_one_waits_for_a_few_of_its_spans_only():
    lanes, held = Lanes(2), Held()
    huge = lanes.submit(held, 10_000, 1)
    for _ in range(2):
        assert held.begun.acquire(timeout=SOON_S)
    small = lanes.submit(lambda start, stop: None, 3, 1)
    waited_for = 0
    while not small.done():
        held.may.release()
        assert held.begun.acquire(timeout=SOON_S)
        waited_for += 1
        assert waited_for < 20
    assert not huge.done()
    for _ in range(10_000):
        held.may.release()
    huge.result(SOON_S)
    lanes.close()


def test_one_owners_task_waits_for_one_span_of_each_other_and_not_for_all_of_their_tasks():
    lanes, held, order = Lanes(1), Held(), []
    flood = [lanes.submit(held, 1, 1, "flood")]
    assert held.begun.acquire(timeout=SOON_S)
    for _ in range(50):
        flood.append(lanes.submit(lambda start, stop: order.append("flood"), 3, 1, "flood"))
    single = lanes.submit(lambda start, stop: order.append("single"), 3, 1, "single")
    held.may.release()
    wait([*flood, single], SOON_S)
    assert [place for place, owner in enumerate(order) if owner == "single"] == [1, 3, 5]
    assert len(order) == 153
    lanes.close()


def test_alone_a_task_has_all_lanes_at_once():
    lanes, together = Lanes(3), threading.Barrier(3)
    lanes.submit(lambda start, stop: together.wait(SOON_S), 3, 1).result(SOON_S)
    lanes.close()


def test_a_waiter_that_gave_up_ends_its_task():
    lanes, held = Lanes(1), Held()
    future = lanes.submit(held, 1_000, 1)
    assert held.begun.acquire(timeout=SOON_S)
    assert future.cancel()
    held.may.release()
    lanes.submit(lambda start, stop: None, 1, 1).result(SOON_S)
    assert not held.begun.acquire(blocking=False)
    lanes.close()


def test_closing_finishes_what_waits_and_ends_the_threads_and_what_comes_after_starts_them_again():
    before = set(threading.enumerate())
    lanes, held = Lanes(1), Held()
    times = torch.zeros(1_000, dtype=torch.int32)

    def span(start, stop):
        times[start:stop] += 1

    lanes.submit(held, 1, 1)
    assert held.begun.acquire(timeout=SOON_S)
    waiting = lanes.submit(span, 1_000, 1)
    closing = threading.Thread(target=lanes.close)
    closing.start()
    held.may.release()
    closing.join(SOON_S)
    assert waiting.result(SOON_S) is None
    assert times.unique().tolist() == [1]
    assert set(threading.enumerate()) == before
    lanes.submit(span, 10, 1).result(SOON_S)
    lanes.close()
    assert set(threading.enumerate()) == before
