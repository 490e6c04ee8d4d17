"""The choice of a batch: lengths, cost, and fairness between owners."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.encoders.batch_queue import LENGTH_RATIOS
from tests.encoders.squares import (
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


def test_an_idle_lane_takes_a_single_input_at_once():
    model = Squares()
    model.gate.clear()
    with lanes(budget=10**6) as batcher:
        work = batcher.submit(model, [item(3)], "a")
        assert model.entered.acquire(timeout=LONG_S)  # no other request comes that could end a wait
        model.gate.set()
        torch.testing.assert_close(result(work), squares([3]))
        assert len(model.batches) == 1


def test_requests_that_wait_together_share_a_batch():
    model = Squares()
    for n, work in enumerate(
        run_together(*((model, [item(n, length=4)], f"owner {n}") for n in range(8)))
    ):
        torch.testing.assert_close(result(work), squares([n]))
    assert [len(batch) for batch in model.batches] == [8]


def test_short_inputs_are_not_padded_to_the_length_of_long_ones():
    model = Squares()
    [work] = run_together((model, [item(n, length=n) for n in range(1, 101)], "a"), budget=1000)
    torch.testing.assert_close(result(work), squares(range(1, 101)))
    for batch in model.batches:
        lengths = [each.length for each in batch]
        assert min(lengths) >= LENGTH_RATIOS[-1] * max(lengths)
    assert [batch[0].length for batch in model.batches] == sorted(
        (batch[0].length for batch in model.batches), reverse=True
    )


def test_many_small_inputs_are_one_batch_and_few_are_spread_over_lanes():
    model = Squares()
    for work in run_together(*((model, [item(n)], "a") for n in range(64)), count=4, budget=64):
        result(work)
    assert sum(map(len, model.batches)) == 64
    # The first lanes leave a share for each idle lane, but at least half a budget is a batch.
    assert max(map(len, model.batches)) in (32, 64)


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


def test_inputs_without_cost_and_empty_requests():
    model = Squares()
    with lanes() as batcher:
        nothing = batcher.submit(model, [], "a")
        assert nothing.future.result(0).shape == (0, 2)
        free = batcher.submit(model, [item(n, length=0) for n in range(3)], "a")
        torch.testing.assert_close(result(free), squares(range(3)))


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


def test_one_long_input_does_not_starve_among_many_short_ones_of_others():
    model = Squares()
    short = [(model, [item(100 * o + n) for n in range(100)], f"owner {o}") for o in range(5)]
    for work in run_together(*short, (model, [item(5000, length=30)], "long")):
        result(work)
    assert order(model)[5000] <= 5


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


@pytest.mark.parametrize(
    ("lengths", "batches"),
    [([10] * 10 + [6] * 20, [[10] * 10, [6] * 16, [6] * 4]), ([10, 8, 8, 3], [[10, 8, 8], [3]])],
)
def test_a_batch_has_similar_lengths_unless_it_is_small(lengths, batches):
    model = Squares()
    run_together(
        (model, [item(n, length=length) for n, length in enumerate(lengths)], "a"), budget=100
    )
    assert [[each.length for each in batch] for batch in model.batches] == batches
