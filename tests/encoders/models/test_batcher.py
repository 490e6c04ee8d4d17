"""Batches of many requests: their choice, limits, cancellation, errors, and the lanes."""

from __future__ import annotations

from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.encoders.models.batcher import LENGTH_RATIO, Batcher
from app.errors import EncoderFailed, InvalidInput, Overloaded, TooMuchAtOnce
from tests.encoders.models.squares import (
    LONG_S,
    Failing,
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


def test_short_inputs_are_not_padded_to_the_length_of_long_ones():
    model = Squares()
    [work] = run_together((model, [item(n, length=n) for n in range(1, 101)], "a"), budget=1000)
    torch.testing.assert_close(result(work), squares(range(1, 101)))
    for batch in model.batches:
        lengths = [each.length for each in batch]
        assert min(lengths) >= LENGTH_RATIO * max(lengths)
    assert [batch[0].length for batch in model.batches] == sorted(
        (batch[0].length for batch in model.batches), reverse=True
    )


@pytest.mark.parametrize(
    ("budget", "items", "batches"),
    [
        (10, [item(1, length=500), item(2, length=400)], [1, 1]),
        (100, [item(n, length=224, cost=20) for n in range(10)], [5, 5]),
    ],
    ids=["an input above the budget runs alone", "cost counts where length says something else"],
)
def test_a_batch_is_limited_by_cost(budget, items, batches):
    model = Squares()
    [work] = run_together((model, items, "a"), budget=budget)
    torch.testing.assert_close(result(work), squares([each.features for each in items]))
    assert [len(batch) for batch in model.batches] == batches


drawn_works = st.lists(
    st.tuples(
        st.integers(0, 3),  # owner
        st.integers(0, 1),  # model
        st.lists(st.integers(0, 40), max_size=12),  # lengths
        st.sampled_from(["kept", "kept", "cancelled while waiting", "cancelled while running"]),
        st.booleans(),  # patient
    ),
    max_size=12,
)


@given(drawn_works, st.integers(1, 3), st.integers(1, 64))
def test_every_task_gets_its_own_rows_in_order(drawn, count, budget):
    models = [Squares(), Squares()]
    number = iter(range(10**6))
    works = []
    with lanes(count, budget) as batcher:
        with hold_lanes(batcher, count):
            for owner, model, lengths, fate, patient in drawn:
                items = [item(next(number), length) for length in lengths]
                works.append(
                    (
                        batcher.submit(models[model], items, f"owner {owner}", patient=patient),
                        items,
                        fate,
                    )
                )
            for work, _, fate in works:
                if fate == "cancelled while waiting":
                    work.future.cancel()
        for work, _, fate in works:
            if fate == "cancelled while running":
                work.future.cancel()
        for work, items, fate in works:
            if fate == "kept" or not work.future.cancelled():
                torch.testing.assert_close(result(work), squares([each.features for each in items]))
    ran = [each.features for model in models for batch in model.batches for each in batch]
    assert len(ran) == len(set(ran))
    for work, items, fate in works:
        if fate == "cancelled while waiting" and items:
            assert work.future.cancelled()
            assert not {each.features for each in items} & set(ran)
    for batch in (batch for model in models for batch in model.batches):
        assert len(batch) == 1 or len(batch) * max(each.cost for each in batch) <= budget


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


@pytest.mark.parametrize("pads", [True, False])
def test_owners_share_a_batch_evenly(pads):
    model = Squares()
    model.pads = pads
    for work in run_together(
        *((model, [item(100 * o + n) for n in range(90)], f"owner {o}") for o in range(3)),
        budget=30,
    ):
        result(work)
    first = [int(each.features) // 100 for each in model.batches[0]]
    assert all(
        9 <= first.count(owner) <= 11 for owner in range(3)
    )  # the first owner may have one more


def test_a_model_with_little_work_does_not_wait_for_a_busy_one():
    busy, quiet = Squares(), Squares()
    happened = []
    for model, name in ((busy, "busy"), (quiet, "quiet")):
        model.vectors = lambda items, name=name: (
            happened.append(name) or squares([each.features for each in items])
        )
    for work in run_together(
        (busy, [item(n, length=8) for n in range(100)], "a"), (quiet, [item(1)], "a")
    ):
        result(work)
    assert happened.index("quiet") <= 1


# Limits


def test_too_much_of_one_owner_is_refused_while_others_are_served():
    model = Squares()
    with lanes(most=100) as batcher:
        with hold_lanes(batcher):
            first = batcher.submit(model, [item(1, length=50)], "greedy")
            with pytest.raises(TooMuchAtOnce) as caught:
                batcher.submit(model, [item(9)], "greedy")
            assert 1 <= caught.value.retry_after_s <= 60
            others = [batcher.submit(model, [item(2, length=49)], "modest")]
            others.append(
                batcher.submit(model, [item(3, length=1)], "third")
            )  # an owner with no waiting items has a higher limit
            with pytest.raises(Overloaded) as full:
                batcher.submit(model, [item(9)], "modest")
            assert 1 <= full.value.retry_after_s <= 60
            others.append(batcher.submit(model, [item(4, length=100)], "fourth"))
            with pytest.raises(Overloaded):
                batcher.submit(model, [item(9)], "fifth")
            first.future.cancel()
            others.append(batcher.submit(model, [item(5)], "fifth"))
        for work in others:
            result(work)
        assert sorted(order(model)) == [2, 3, 4, 5]


def test_a_jobs_task_is_never_refused_and_refuses_no_other():
    model = Squares()
    with lanes(most=100) as batcher:
        with hold_lanes(batcher):
            job = [
                batcher.submit(
                    model, [item(n, length=90) for n in range(10)], "job 1", patient=True
                )
                for _ in range(3)
            ]
            single = batcher.submit(model, [item(1)], "key")
        result(single)
        for work in job:
            result(work)


def test_a_slow_model_uses_at_most_its_number_of_lanes():
    slow, quick = Squares(), Squares()
    slow.gate.clear()
    with lanes(count=3, budget=2, each=2) as batcher:
        works = [batcher.submit(slow, [item(n), item(n)], "a") for n in range(5)]
        assert all(slow.entered.acquire(timeout=LONG_S) for _ in range(2))
        torch.testing.assert_close(result(batcher.submit(quick, [item(7)], "b")), squares([7]))
        assert len(slow.batches) == 2
        slow.gate.set()
        for n, work in enumerate(works):
            torch.testing.assert_close(result(work), squares([n, n]))


# Cancellation, errors and the end


def test_a_task_cancelled_while_it_runs_loses_only_its_own_rest():
    model = Squares()
    with lanes(budget=4) as batcher:
        model.gate.clear()
        work = batcher.submit(model, [item(n) for n in range(10)], "a")
        assert model.entered.acquire(timeout=LONG_S)
        assert work.future.cancel()
        other = batcher.submit(model, [item(50)], "b")
        model.gate.set()
        torch.testing.assert_close(result(other), squares([50]))
        assert len(order(model)) <= 4 + 1
    with pytest.raises(CancelledError):
        work.future.result(0)


def test_a_bad_input_fails_only_its_own_request():
    model = Failing()
    good = [(model, [item(n), item(n + 0.5)], f"owner {n}") for n in range(3)]
    *works, bad = run_together(*good, (model, [item(1), item(InvalidInput("no", rows=[1]))], "bad"))
    for n, work in enumerate(works):
        torch.testing.assert_close(result(work), squares([n, n + 0.5]))
    with pytest.raises(InvalidInput):
        result(bad)


def test_a_task_fails_as_a_whole_and_its_rest_is_dropped():
    model = Failing()
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
    "error",
    [
        RuntimeError("path/to/secret"),
        SystemExit(1),
    ],
)
def test_any_error_of_a_model_fails_the_request_and_not_the_lane(error):
    model = Failing()
    with lanes() as batcher:
        with pytest.raises(EncoderFailed, match=type(error).__name__) as caught:
            result(batcher.submit(model, [item(error)], "a"))
        assert "secret" not in caught.value.detail
        assert caught.value.__cause__ is error  # a worker looks whether its device failed
        torch.testing.assert_close(result(batcher.submit(model, [item(2)], "a")), squares([2]))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda vectors: vectors[:1],
        lambda vectors: vectors[:, :1],
        lambda vectors: None,
    ],
)
def test_vectors_of_another_shape_are_an_error(wrong):
    model = Squares()
    model.vectors = lambda items: wrong(squares([each.features for each in items]))
    for work in run_together(
        *((model, [item(1), item(2), item(3)], owner) for owner in ("a", "b"))
    ):
        with pytest.raises(EncoderFailed):
            result(work)


def test_rows_delivered_twice_do_not_complete_a_task():
    """A model that fails for a batch but not for its parts: delivered parts count once."""
    model = Squares()
    own = model.vectors

    def wrong_of_two_owners(items):
        owners = {each.features // 10 for each in items}
        return own(items)[: 1 if len(owners) > 1 else None]

    model.vectors = wrong_of_two_owners
    requests = [(model, [item(10 * o + n) for n in range(4)], f"owner {o}") for o in range(2)]
    for o, work in enumerate(run_together(*requests, budget=4)):
        torch.testing.assert_close(result(work), squares([10 * o + n for n in range(4)]))


def test_a_failing_endpoint_gets_one_request_for_all_tasks():
    model = Failing(remote=True)
    works = run_together(*((model, [item(EncoderFailed("away"))], f"owner {n}") for n in range(5)))
    errors = [work.future.exception(0) for work in works]
    assert {type(error) for error in errors} == {EncoderFailed}
    assert len({id(error) for error in errors}) == 5  # each names its own field later
    assert len(model.batches) == 1


def test_closing_ends_the_running_batch_and_fails_waiting_tasks():
    model = Squares()
    model.gate.clear()
    with lanes() as batcher:
        running = batcher.submit(model, [item(1)], "a")
        assert model.entered.acquire(timeout=LONG_S)
        waiting = batcher.submit(model, [item(2)], "a")
        batcher.close()
        with pytest.raises(EncoderFailed, match="stopping"):
            waiting.future.result(0)
        with pytest.raises(EncoderFailed, match="stopping"):
            batcher.submit(model, [item(3)], "a")
        model.gate.set()
        torch.testing.assert_close(result(running), squares([1]))
        for lane in batcher._lanes:
            lane.join(LONG_S)
            assert not lane.is_alive()


def test_closing_waits_for_lanes_that_compute():
    """A process that exits while torch computes in another thread aborts."""
    model = Squares()
    model.gate.clear()
    batcher = Batcher(lanes=2, threads=1, budget=8, most=100)
    work = batcher.submit(model, [item(1)], "a")
    assert model.entered.acquire(timeout=LONG_S)
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(batcher.close)
        with pytest.raises(TimeoutError):
            closing.result(0.05)
        model.gate.set()
        closing.result(LONG_S)
    assert not any(lane.is_alive() for lane in batcher._lanes)
    torch.testing.assert_close(work.future.result(0), squares([1]))


@pytest.mark.parametrize(
    ("error", "broken"),
    [
        (ValueError("no"), False),
        (torch.OutOfMemoryError("CUDA out of memory."), False),
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), True),
    ],
)
def test_the_lanes_remember_that_their_device_has_failed(error, broken):
    model = Failing()
    with lanes() as batcher:
        with pytest.raises(EncoderFailed):
            result(batcher.submit(model, [item(error)], "a"))
        until(lambda: batcher.broken == broken)
        result(batcher.submit(model, [item(2)], "a"))
        assert batcher.broken == broken


def test_lanes_that_cannot_use_their_device_fail_their_tasks_instead_of_hanging(monkeypatch):
    def fail(device):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "Stream", fail)
    batcher = Batcher(lanes=1, threads=None, budget=8, most=100, device="cuda:0")
    assert result(batcher.submit(Squares(), [item(3)], "a")).tolist() == [[3, 9]]
    assert batcher.broken
    batcher.close()
