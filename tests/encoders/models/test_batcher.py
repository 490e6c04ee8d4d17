"""Batches of many requests: their choice, limits, cancellation, errors, and the lanes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.encoders.models.batcher import Batcher
from app.errors import EncoderFailed, InvalidInput, TooMuchAtOnce
from tests.encoders.models.squares import (
    LONG_S,
    Squares,
    hold_lanes,
    item,
    lanes,
    order,
    result,
    run_together,
    squares,
)
from tests.waiting import until

# The choice of a batch


def test_inputs_of_similar_length_share_a_batch_the_longest_first():
    model = Squares()
    items = [item(n, length) for n, length in enumerate([9, 50, 10, 48])]
    [work] = run_together((model, items, "a"), budget=100)
    torch.testing.assert_close(result(work), squares(range(4)))
    assert [[each.length for each in batch] for batch in model.batches] == [[50, 48], [10, 9]]


drawn_works = st.lists(
    st.tuples(
        st.integers(0, 3),  # owner
        st.integers(0, 1),  # model
        st.lists(st.integers(0, 40), min_size=1, max_size=12),  # lengths
        st.sampled_from(["kept", "kept", "cancelled while waiting", "cancelled while running"]),
    ),
    max_size=12,
)


@given(drawn_works, st.integers(1, 3), st.integers(1, 64))
def test_every_task_gets_its_own_rows_in_order(drawn, count, budget):
    models = [Squares(), Squares()]
    models[1].batch = 3
    number = iter(range(10**6))
    works, never = [], set()
    with lanes(count, budget) as batcher:
        with hold_lanes(batcher, count):
            for owner, model, lengths, fate in drawn:
                items = [item(next(number), length) for length in lengths]
                work = batcher.submit(models[model], items, f"owner {owner}")
                works.append((work, [each.features for each in items], fate))
                if fate == "cancelled while waiting":
                    work.future.cancel()
                    never.update(works[-1][1])
        for work, _, fate in works:
            if fate == "cancelled while running":
                work.future.cancel()
        for work, numbers, _ in works:
            if not work.future.cancelled():
                torch.testing.assert_close(result(work), squares(numbers))
    ran = [each.features for model in models for batch in model.batches for each in batch]
    assert len(ran) == len(set(ran))
    assert not never & set(ran)
    for model in models:
        for batch in model.batches:
            padded = len(batch) * max(max(1, each.length) for each in batch)
            assert len(batch) == 1 or padded <= budget
            assert len(batch) <= model.batch


@pytest.mark.parametrize(
    ("length", "owner"), [(1, "single"), (8, "single"), (40, "single"), (2, "many")]
)
def test_one_input_does_not_wait_for_a_thousand_of_another_owner_or_its_own(length, owner):
    model = Squares()
    many = [item(n, length=8) for n in range(1000)]
    for work in run_together((model, many, "many"), (model, [item(5000, length=length)], owner)):
        result(work)
    assert len(model.batches) > 200
    assert order(model)[5000] <= 1


def test_owners_share_a_batch_evenly():
    model = Squares()
    for work in run_together(
        *((model, [item(100 * o + n) for n in range(45)], f"owner {o}") for o in range(3)),
        budget=30,
    ):
        result(work)
    owners = [[int(each.features) // 100 for each in batch] for batch in model.batches]
    assert {tuple(batch.count(o) for o in range(3)) for batch in owners[:4]} == {(10, 10, 10)}


@pytest.mark.parametrize("owner", ["a", "b"])
def test_a_model_with_little_work_does_not_wait_for_busy_ones(owner):
    models = [Squares() for _ in range(9)]
    happened = []
    for number, model in enumerate(models):
        model.vectors = lambda items, number=number: (
            happened.append(number) or squares([each.features for each in items])
        )
    busy = [(model, [item(n, length=8) for n in range(100)], "a") for model in models[:-1]]
    for work in run_together(*busy, (models[-1], [item(1)], owner)):
        result(work)
    assert happened.index(8) <= (8 if owner == "a" else 1)


# Limits


def test_too_much_of_one_owner_is_refused_and_refuses_no_other_owner_and_no_job():
    model = Squares()
    with lanes(most=50) as batcher:
        with hold_lanes(batcher):
            first = batcher.submit(model, [item(1, length=50)], "a")
            with pytest.raises(TooMuchAtOnce) as caught:
                batcher.submit(model, [item(9)], "a")
            assert 1 <= caught.value.retry_after_s <= 60
            job = batcher.submit(
                model, [item(n, length=90) for n in range(9)], "b", is_limited=False
            )
            others = [batcher.submit(model, [item(20, length=90)], owner) for owner in "bc"]
            first.future.cancel()
            others.append(batcher.submit(model, [item(30)], "a"))
        for work in (job, *others):
            result(work)
        assert sorted(each.features for batch in model.batches for each in batch) == [
            *range(9),
            20,
            20,
            30,
        ]


# Cancellation, errors and the end


def test_a_bad_input_fails_only_its_own_request():
    model = Squares()
    good = [(model, [item(n), item(n + 0.5)], f"owner {n}") for n in range(3)]
    *works, bad = run_together(*good, (model, [item(1), item(InvalidInput("no", rows=[1]))], "bad"))
    for n, work in enumerate(works):
        torch.testing.assert_close(result(work), squares([n, n + 0.5]))
    with pytest.raises(InvalidInput):
        result(bad)


def test_a_task_fails_as_a_whole_and_its_rest_is_dropped():
    model = Squares()
    with lanes(budget=2) as batcher:
        with hold_lanes(batcher):
            work = batcher.submit(
                model, [item(RuntimeError(), length=3), *(item(n) for n in range(50))], "a"
            )
        with pytest.raises(EncoderFailed):
            result(work)
        result(batcher.submit(model, [item(1)], "a"))
    assert len(order(model)) <= 1 + 2 + 1


@pytest.mark.parametrize(
    ("error", "broken"),
    [
        (RuntimeError("path/to/secret"), False),
        (SystemExit(1), False),
        (None, False),  # an array of another shape
        (torch.OutOfMemoryError("CUDA out of memory."), False),
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), True),
    ],
)
def test_a_fault_of_a_model_fails_its_request_and_one_of_the_device_breaks_the_lanes(error, broken):
    model = Squares()
    if error is None:
        model.vectors = lambda items: torch.ones(len(items), 1)
    with lanes() as batcher:
        with pytest.raises(EncoderFailed) as caught:
            result(batcher.submit(model, [item(error or 1)], "a"))
        assert "secret" not in caught.value.detail
        # a worker looks whether its device failed
        assert type(caught.value.__cause__) is type(error or ValueError())
        until(lambda: batcher.broken == broken)
        torch.testing.assert_close(result(batcher.submit(Squares(), [item(2)], "a")), squares([2]))
        assert batcher.broken == broken


def test_a_failing_endpoint_gets_one_request_for_all_tasks():
    model = Squares(endpoint="http://away")
    works = run_together(*((model, [item(EncoderFailed("away"))], f"o {n}") for n in range(5)))
    errors = {work.future.exception(0) for work in works}
    assert len(errors) == 5  # each names its own field later
    assert {type(error) for error in errors} == {EncoderFailed}
    assert len(model.batches) == 1


@pytest.mark.parametrize("threads", [None, 1])
def test_closing_ends_the_running_batch_and_fails_waiting_tasks(threads):
    """Closing waits for lanes that compute: a process that exits while torch computes aborts."""
    model = Squares()
    model.gate.clear()
    batcher = Batcher(lanes=1, threads=threads, budget=1, most=100)
    running = batcher.submit(model, [item(1)], "a")
    assert model.entered.acquire(timeout=LONG_S)
    waiting = batcher.submit(model, [item(2)], "a")
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(batcher.close)
        with pytest.raises(EncoderFailed, match="stopping"):
            waiting.future.result(LONG_S)
        assert threads is None or not closing.done()
        model.gate.set()
        closing.result(LONG_S)
    torch.testing.assert_close(result(running), squares([1]))
    with pytest.raises(EncoderFailed, match="stopping"):
        batcher.submit(model, [item(3)], "a")


def test_lanes_that_cannot_use_their_device_fail_their_tasks_instead_of_hanging(monkeypatch):
    def fail(device):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "Stream", fail)
    batcher = Batcher(lanes=1, threads=None, budget=8, most=100, device="cuda:0")
    assert result(batcher.submit(Squares(), [item(3)], "a")).tolist() == [[3, 9]]
    assert batcher.broken
    batcher.close()
