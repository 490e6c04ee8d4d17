"""A smaller source is matched as the target, with pairs, rows and checkpoints of its own side."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from app.maths.bootstrap.exchange import EXCHANGED, learn
from safetensors.torch import load, save

from app.maths.bootstrap import self_learning
from app.maths.bootstrap.pools import Pools, State, Step
from tests.maths.bootstrap.clouds import states
from tests.maths.bootstrap.test_self_learning import LONG, SHORT, check_result, hidden_order, same

#: 60 items whose partners are among 240, and 80 among 120 that are no longer all there
CONTAINED, PARTLY = (
    hidden_order(2, only_y=180, common=60),
    hidden_order(3, common=80, only_y=60, only_x=10),
)


def turned(pools: Pools) -> Pools:
    return Pools(pools.y, pools.x, pools.memory)


@pytest.mark.parametrize("count", [0, 6])
@pytest.mark.parametrize("order", [CONTAINED, PARTLY], ids=["contained", "partly"])
def test_a_smaller_source_has_the_pairs_of_the_exchanged_pools(order, count):
    seeds = order.seeds(count)
    found = check_result(learn(order.pools, seeds, SHORT), order.pools, seeds, SHORT)
    other = self_learning.learn(turned(order.pools), [(j, i) for i, j in seeds], SHORT)
    assert torch.equal(found.pairs, other.pairs.flip(1))
    assert torch.equal(found.confidence, other.confidence)
    assert repr(found.estimate) == repr(other.estimate)
    assert found.wrong_seeds == other.wrong_seeds


def test_a_source_that_is_not_smaller_is_matched_as_before():
    for order in (hidden_order(1, common=60), hidden_order(1, common=60, only_x=20)):
        seeds = order.seeds(5)
        assert same(
            learn(order.pools, seeds, SHORT), self_learning.learn(order.pools, seeds, SHORT)
        )


def test_items_whose_partners_are_among_many_others_are_found():
    """500 among 3,000 by real encoders: benchmarks/bootstrap/contained.py."""
    order = hidden_order(4, common=150, only_y=1500)
    found = learn(order.pools, order.seeds(6), self_learning.SelfLearningSettings(attempts=2))
    assert len(found.pairs) > 100
    assert order.right(found.pairs) > 0.9


def test_rows_limit_the_source_as_given_and_keep_its_seeds():
    seeds = PARTLY.seeds(5)
    limited = replace(SHORT, rows=50)
    found = check_result(learn(PARTLY.pools, seeds, limited), PARTLY.pools, seeds, limited)
    assert len(found.votes.pairs[:, 0].unique()) <= 50
    assert bool((found.votes.pairs[:, 0] >= 50).any())  # rows of the whole pool


@pytest.mark.parametrize("count", [0, 4])
def test_a_run_from_a_checkpoint_has_the_bits_of_an_uninterrupted_one(count):
    pools, seeds = CONTAINED.pools, CONTAINED.seeds(count)
    steps: list[Step] = []
    whole = learn(pools, seeds, LONG, on_step=steps.append)
    kept = states(steps)
    assert all(EXCHANGED in state for state in kept)
    done = [step.done for step in steps]
    assert done == sorted(done)
    assert all(step.done <= step.total for step in steps)
    for state in kept[:: max(1, len(kept) // 5)]:
        assert same(learn(pools, seeds, LONG, state=load(save(dict(state)))), whole)


def test_a_checkpoint_of_an_earlier_version_continues_without_an_exchange():
    pools, seeds = CONTAINED.pools, CONTAINED.seeds(4)
    steps: list[Step] = []
    whole = self_learning.learn(pools, seeds, SHORT, on_step=steps.append)
    state: State = states(steps)[3]
    assert same(learn(pools, seeds, SHORT, state=state), whole)
