"""Properties of every anchor optimisation, for any correspondence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import InvalidSeeds
from app.maths.bootstrap import paper, soft_plan
from app.maths.bootstrap.anchor_optimisation import TargetRelatives, mean_squares
from app.maths.bootstrap.pools import GrownPairs, Pools, State, Step, fit_pools
from tests.maths.bootstrap.clouds import normal, rotated, states

Grow = Callable[..., GrownPairs]

#: (pools, seeds, size=, steps=, seed=, state=, on_step=) -> Grown
METHODS: dict[str, Callable[..., tuple[Grow, object]]] = {
    "columns": lambda **chosen: (paper.grow, paper.PaperSettings(**chosen)),
    "rows": lambda **chosen: (
        paper.grow,
        paper.PaperSettings(**chosen, argmax="rows", sinkhorn_steps=2),
    ),
    "seeds-not-frozen": lambda **chosen: (
        paper.grow,
        paper.PaperSettings(**chosen, freeze_seeds=False),
    ),
    "soft-plan": lambda **chosen: (soft_plan.grow, soft_plan.SoftPlanSettings(**chosen)),
}
every_method = pytest.mark.parametrize("method", METHODS)


def grow(method: str, pools: Pools, seeds: list[tuple[int, int]], **chosen) -> GrownPairs:
    passed = {name: chosen.pop(name) for name in ("state", "on_step") if name in chosen}
    function, made = METHODS[method](**chosen)
    return function(pools, seeds, made, **passed)


def same(first: GrownPairs, second: GrownPairs) -> bool:
    return (
        torch.equal(first.pairs, second.pairs)
        and torch.equal(first.confidence.isnan(), second.confidence.isnan())
        and first.facts == second.facts
    )


@every_method
def test_finds_the_partners_across_a_rotation(method):
    pools, partner = rotated(100)
    found = grow(method, pools, [(i, partner[i]) for i in range(20)], size=40)
    new = found.pairs.tolist()[20:]
    assert len(new) >= 15
    assert sum(partner[i] == j for i, j in new) >= 0.9 * len(new)
    assert found.facts["nearness"] > 0.9
    assert found.facts["agreement"] > 0.9
    assert bool(found.confidence.isnan().all())


@every_method
@given(stopped=st.integers(1, 11), seed=st.integers(0, 2**31))
@settings(max_examples=4)
def test_a_run_from_any_step_has_the_bits_of_an_uninterrupted_one(method, stopped, seed):
    pools = Pools(
        *(torch.nn.functional.normalize(normal(seed + side, 40 + side, 6)) for side in (0, 1))
    )
    seeds = [(0, 3), (5, 1), (9, 9)]
    chosen = {"size": 12, "steps": 12, "seed": seed}
    first: list[Step] = []
    undisturbed = grow(method, pools, seeds, **chosen, on_step=first.append)
    before, later = states(first), []
    resumed = grow(method, pools, seeds, **chosen, state=before[stopped - 1], on_step=later.append)
    after = states(later)
    assert same(undisturbed, resumed)
    assert len(after) == 12 - stopped
    assert all(torch.equal(tensor, before[-1][name]) for name, tensor in after[-1].items())
    again = grow(method, pools, seeds, **chosen, state=before[-1])
    assert same(undisturbed, again)


@every_method
def test_a_state_is_not_overwritten_by_the_steps_that_follow(method):
    pools, partner = rotated(60)
    kept: list[State] = []
    copies: list[State] = []

    def keep(step: Step) -> None:
        if step.state is not None:
            kept.append(step.state)
            copies.append({name: tensor.clone() for name, tensor in step.state.items()})

    grow(method, pools, [(i, partner[i]) for i in range(5)], size=10, steps=5, on_step=keep)
    assert len(kept) == 5
    for state, copy in zip(kept, copies, strict=True):
        for name, tensor in state.items():
            assert tensor.device.type == "cpu"
            assert torch.equal(tensor, copy[name]) or bool(tensor.isnan())
    assert not torch.equal(kept[0]["free"], kept[1]["free"])


@every_method
def test_equal_seeds_draw_equal_anchors_and_another_draws_others(method):
    pools, partner = rotated(150)
    seeds = [(i, partner[i]) for i in range(20)]
    first, second = (grow(method, pools, seeds, size=40, steps=5) for _ in range(2))
    assert same(first, second)
    other = grow(method, pools, seeds, size=40, steps=5, seed=1)
    assert set(other.pairs[:, 0].tolist()) != set(first.pairs[:, 0].tolist())


@every_method
@given(seed=st.integers(0, 2**31), count=st.integers(2, 6), size=st.integers(6, 12))
@settings(max_examples=10)
def test_no_item_is_taken_twice_on_a_side(method, seed, count, size):
    pools = Pools(*(torch.nn.functional.normalize(normal(seed + n, n, n - 8)) for n in (15, 12)))
    seeds = list(
        zip(torch.randperm(15)[:count].tolist(), torch.randperm(12)[:count].tolist(), strict=True)
    )
    found = grow(method, pools, seeds, size=size, steps=5, seed=seed)
    pairs = [tuple(pair) for pair in found.pairs.tolist()]
    assert len(pairs) == len(found.confidence) <= size
    assert len({i for i, _ in pairs}) == len({j for _, j in pairs}) == len(pairs)
    assert all(0 <= i < 15 and 0 <= j < 12 for i, j in pairs)
    kept = [pair in seeds for pair in pairs]
    assert kept == sorted(kept, reverse=True)
    if method != "seeds-not-frozen":
        assert pairs[:count] == seeds


@every_method
def test_the_loss_falls(method):
    pools, partner = rotated(150)
    steps: list[Step] = []
    grow(
        method, pools, [(i, partner[i]) for i in range(20)], size=40, steps=60, on_step=steps.append
    )
    losses = [step.facts["loss"] for step in steps if step.state is not None]
    assert losses[-1] < 0.5 * losses[0]


@every_method
def test_on_step_hears_of_every_step_and_between_and_what_it_raises_ends_the_work(method):
    pools = fit_pools(normal(10, 30, 4), normal(11, 30, 4))
    seen: list[Step] = []
    # One row of the table at a time: many signs of life in a step.
    small = replace(pools, memory=1)
    grow(method, small, [(0, 0), (1, 1)], size=5, steps=4, on_step=seen.append)
    with_state = [step for step in seen if step.state is not None]
    assert [(step.done, step.total) for step in with_state] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert len(seen) > 4 * 30
    assert all("loss" in step.facts for step in with_state)
    assert ["agreement" in step.facts for step in with_state] == [False, True, True, True]

    def stop(step: Step) -> None:
        seen.append(step)
        if step.done == 2 and step.state is None:
            raise InterruptedError

    seen.clear()
    with pytest.raises(InterruptedError):
        grow(method, small, [(0, 0), (1, 1)], size=5, steps=4, on_step=stop)
    assert [step.done for step in seen if step.state is not None] == [1, 2]


@every_method
def test_memory_bounds_what_is_held_of_the_tables_that_grow_with_both_pools(method, peak):
    pools = Pools(
        *(torch.nn.functional.normalize(normal(n, n, 8)) for n in (1_500, 1_400)), memory=2**18
    )
    linear = (
        40 * 1_500 * 10 * 4
    )  # relative vectors and copies of them: they grow with n and with m, not with both
    assert linear + pools.memory < 4 * 1_500 * 1_400 / 2
    seeds = [(0, 0), (1, 1)]
    assert peak(partial(grow, method, pools, seeds, size=10, steps=2)) < linear + pools.memory


@every_method
def test_every_method_refuses_invalid_seeds(method):
    pools = fit_pools(normal(12, 10, 4), normal(13, 8, 4))
    with pytest.raises(InvalidSeeds):
        grow(method, pools, [(0, 8), (1, 1)], size=5)


@given(
    seed=st.integers(0, 2**31),
    m=st.integers(1, 30),
    size=st.integers(1, 8),
    rows=st.integers(1, 40),
)
def test_the_gradient_is_autograds(seed, m, size, rows):
    y, anchors = normal(seed, m, 5), normal(seed + 1, size, 5).requires_grad_()
    chosen = torch.randint(m, (rows,), generator=torch.Generator().manual_seed(seed))
    wanted = TargetRelatives(chosen, normal(seed + 2, rows, size), chosen)
    relative = y @ anchors.T
    expected = (relative[chosen] - wanted.relative).square().mean()
    expected.backward()
    loss, gradient = mean_squares(y, relative.detach(), wanted)
    assert loss == pytest.approx(float(expected.detach()), rel=1e-5)
    torch.testing.assert_close(gradient, anchors.grad, atol=1e-5, rtol=1e-4)
