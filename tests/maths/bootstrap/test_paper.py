"""Anchors grown from seed pairs."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from app.errors import InvalidSeeds
from app.maths.bootstrap.common import check_seeds
from app.maths.bootstrap.paper import Settings, correspondence, optimise


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def naive_plan(first: list[list[float]], second: list[list[float]], epsilon: float, steps: int) -> list[list[float]]:
    """Log of the entropic plan by the Sinkhorn iterations of Cuturi 2013, in float64, entry by entry."""
    n, m = len(first), len(second)
    cost = [[math.dist(a, b) for b in second] for a in first]
    u, v = [0.0] * n, [0.0] * m

    def log_sum_exp(values: list[float]) -> float:
        largest = max(values)
        return largest + math.log(sum(math.exp(value - largest) for value in values))

    for _ in range(steps):
        for i in range(n):
            u[i] = epsilon * (math.log(1 / n) - log_sum_exp([(v[j] - cost[i][j]) / epsilon for j in range(m)]))
        for j in range(m):
            v[j] = epsilon * (math.log(1 / m) - log_sum_exp([(u[i] - cost[i][j]) / epsilon for i in range(n)]))
    return [[(u[i] + v[j] - cost[i][j]) / epsilon for j in range(m)] for i in range(n)]


@given(seed=st.integers(0, 2**31), epsilon=st.sampled_from([1e-2, 0.1, 1.0]), steps=st.integers(1, 20))
def test_correspondence_is_the_largest_entry_of_each_column_of_a_naive_plan(seed, epsilon, steps):
    first, second = normal(seed, 6, 3), normal(seed + 1, 5, 3)
    plan = naive_plan(first.double().tolist(), second.double().tolist(), epsilon, steps)
    found = correspondence(first, second, epsilon=epsilon, steps=steps).tolist()
    for j in range(5):
        column = [row[j] for row in plan]
        # within what float32 potentials can tell apart
        assert epsilon * (max(column) - column[found[j]]) < 1e-4


def test_many_sinkhorn_steps_make_the_naive_plan_a_coupling_with_uniform_marginals():
    first, second = normal(1, 6, 3).tolist(), normal(2, 5, 3).tolist()
    plan = [[math.exp(entry) for entry in row] for row in naive_plan(first, second, 1.0, 200)]
    assert [sum(row) for row in plan] == pytest.approx([1 / 6] * 6)
    assert [sum(column) for column in zip(*plan, strict=True)] == pytest.approx([1 / 5] * 5)


def test_correspondence_undoes_a_permutation():
    first, order = normal(3, 30, 8), torch.randperm(30, generator=torch.Generator().manual_seed(4))
    assert torch.equal(correspondence(first, first[order], epsilon=1e-4, steps=1), order)


def easy_case() -> tuple[Tensor, Tensor, list[int]]:
    """150 items and a rotation of them in another order; partner[i] is the row of item i in the second pool."""
    source, (rotation, _) = normal(5, 150, 16), torch.linalg.qr(normal(6, 16, 16))
    partner = torch.randperm(150, generator=torch.Generator().manual_seed(7))
    target = torch.empty(150, 16)
    target[partner] = 3 * source @ rotation + 2
    return source, target, partner.tolist()


def test_optimise_finds_the_partners_across_a_rotation():
    source, target, partner = easy_case()
    seeds = [(i, partner[i]) for i in range(20)]
    found = optimise(source, target, seeds, Settings(size=40))
    new = found.pairs.tolist()[20:]
    assert len(new) >= 15
    assert sum(partner[i] == j for i, j in new) >= 0.9 * len(new)
    assert float(found.nearness.min()) > 0.9


def test_optimise_is_deterministic_for_equal_seeds_and_draws_other_anchors_for_another():
    source, target, partner = easy_case()
    seeds = [(i, partner[i]) for i in range(20)]
    first, second = (optimise(source, target, seeds, Settings(size=40, steps=10)) for _ in range(2))
    assert torch.equal(first.pairs, second.pairs)
    assert torch.equal(first.nearness, second.nearness)
    assert first.loss == second.loss
    other = optimise(source, target, seeds, Settings(size=40, steps=10, seed=1))
    assert set(other.pairs[20:, 0].tolist()) != set(first.pairs[20:, 0].tolist())


@given(seed=st.integers(0, 2**31), count=st.integers(2, 6), size=st.integers(6, 12))
def test_seeds_stay_first_and_fixed_and_no_item_is_taken_twice_on_a_side(seed, count, size):
    source, target = normal(seed, 15, 4), normal(seed + 1, 12, 5)
    seeds = list(zip(torch.randperm(15)[:count].tolist(), torch.randperm(12)[:count].tolist(), strict=True))
    found = optimise(source, target, seeds, Settings(size=size, steps=5, seed=seed))
    pairs = [tuple(pair) for pair in found.pairs.tolist()]
    assert pairs[:count] == seeds
    assert found.nearness[:count].tolist() == [1.0] * count
    assert count <= len(pairs) == len(found.nearness) <= size
    assert len({i for i, _ in pairs}) == len({j for _, j in pairs}) == len(pairs)
    assert all(0 <= i < 15 and 0 <= j < 12 for i, j in pairs)
    assert found.nearness[count:].tolist() == sorted(found.nearness[count:].tolist(), reverse=True)


def test_seeds_that_already_fill_the_size_come_back_as_they_are():
    found = optimise(normal(8, 10, 4), normal(9, 10, 4), [(3, 1), (0, 9)], Settings(size=2))
    assert found.pairs.tolist() == [[3, 1], [0, 9]]
    assert found.nearness.tolist() == [1.0, 1.0]
    assert found.loss == 0.0


def test_optimisation_lowers_the_loss():
    source, target, partner = easy_case()
    losses: list[float] = []
    found = optimise(
        source,
        target,
        [(i, partner[i]) for i in range(20)],
        Settings(size=40, steps=60),
        on_step=lambda step, loss: losses.append(loss),
    )
    assert found.loss < 0.5 * losses[1]


def test_on_step_counts_the_steps_done_and_what_it_raises_ends_the_optimisation():
    source, target = normal(10, 10, 4), normal(11, 10, 4)
    seen: list[int] = []
    optimise(source, target, [(0, 0), (1, 1)], Settings(size=5, steps=4), on_step=lambda step, loss: seen.append(step))
    assert seen == [0, 1, 2, 3, 4]

    def stop(step: int, loss: float) -> None:
        seen.append(step)
        if step == 2:
            raise InterruptedError

    seen.clear()
    with pytest.raises(InterruptedError):
        optimise(source, target, [(0, 0), (1, 1)], Settings(size=5, steps=4), on_step=stop)
    assert seen == [0, 1, 2]


@pytest.mark.parametrize(
    ("seeds", "size", "field", "rows"),
    [
        ([], 5, "seeds", []),
        ([(0, 0)], 5, "seeds", []),
        ([(0, 0), (1, 1), (2, 2)], 2, "seeds", []),
        ([(0, 0), (1, 1)], 9, "size", []),
        ([(0, 0), (10, 1), (-1, 2), (1, 8)], 5, "seeds", [1, 2, 3]),
        ([(0, 0), (1, 1), (0, 2)], 5, "seeds", [2]),
        ([(0, 0), (1, 1), (2, 1)], 5, "seeds", [2]),
    ],
)
def test_too_few_too_many_outside_or_repeated_seeds_are_refused_naming_the_rows(seeds, size, field, rows):
    with pytest.raises(InvalidSeeds) as caught:
        check_seeds(seeds, source=10, target=8, size=size)
    assert caught.value.field == field
    assert caught.value.rows == rows
    with pytest.raises(InvalidSeeds):
        optimise(normal(12, 10, 4), normal(13, 8, 4), seeds, Settings(size=size))


def test_seeds_that_fit_are_accepted():
    check_seeds([(9, 0), (0, 7)], source=10, target=8, size=8)
