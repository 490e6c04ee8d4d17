"""Self-learning finds hidden orders, knows its failures, and continues from any checkpoint."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from app.errors import InvalidSeeds
from app.maths.bootstrap import self_learning
from app.maths.bootstrap.estimate import Outcome
from app.maths.bootstrap.pools import Pools, State, Step, fit_pools
from app.maths.bootstrap.self_learning import (
    FEWEST_POOL_ITEMS,
    VARIANTS,
    SelfLearningSettings,
    learn,
)
from tests.maths.bootstrap.clouds import normal

Seeds = list[tuple[int, int]]


@dataclass(frozen=True, eq=False)
class HiddenOrder:
    """Two pools with common items.

    x, y     raw vectors
    partner  (n,) the row of y that is row i of x, or -1
    """

    x: Tensor
    y: Tensor
    partner: Tensor

    @property
    def pools(self) -> Pools:
        return fit_pools(self.x, self.y)

    def seeds(self, count: int) -> Seeds:
        return list(enumerate(self.partner[:count].tolist()))

    def right(self, pairs: Tensor) -> float:
        """Share of pairs that are true."""
        return float((self.partner[pairs[:, 0]] == pairs[:, 1]).double().mean())


def hidden_order(
    seed: int,
    *,
    common: int = 300,
    only_x: int = 0,
    only_y: int = 0,
    dy: int = 24,
    noise: float = 0.2,
) -> HiddenOrder:
    """Noisy rotations of one cloud with falling variances in 24 directions, in two orders."""
    spread, n, m = torch.arange(1, 25) ** -0.5, common + only_x, common + only_y
    items = normal(seed, common + only_x + only_y, 24) * spread
    left, right = (
        torch.linalg.qr(normal(seed + k, max(d, 24), max(d, 24))).Q[:24, :d]
        for k, d in ((1, 24), (2, dy))
    )
    of_y = torch.cat([torch.arange(common), torch.arange(n, n + only_y)])
    x = (items[:n] + noise * spread * normal(seed + 3, n, 24)) @ left
    y = (items[of_y] + noise * spread * normal(seed + 4, m, 24)) @ right
    columns = torch.randperm(m, generator=torch.Generator().manual_seed(seed))
    partner = torch.cat([columns.argsort()[:common], torch.full((only_x,), -1)])
    return HiddenOrder(x, y[columns], partner)


#: 80 items, and the same with noise
ALIKE, NOISY = hidden_order(1, common=80), hidden_order(1, common=80, noise=0.4)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> SelfLearningSettings:
    """Every kind of attempt, in few rounds; no agreement ends them."""
    monkeypatch.setattr(self_learning, "ROUNDS", 3)
    monkeypatch.setattr(self_learning, "AGREED", 2.0)
    return SelfLearningSettings(attempts=len(VARIANTS) + 2)


def unrelated(seed: int, d: int) -> Pools:
    return fit_pools(normal(seed, 300, d), normal(seed + 1, 300, d))


def bits(found: Outcome) -> str:
    """Everything that was found, for a comparison to the bit."""
    lists = found.pairs.tolist(), found.confidence.tolist()
    return repr((*lists, found.estimate, found.wrong_seeds, found.facts))


def checked_run(
    pools: Pools, seeds: Seeds, settings: SelfLearningSettings | None = None
) -> Outcome:
    """A run whose result has the properties of every result, right or wrong."""
    settings = settings or SelfLearningSettings()
    result = learn(pools, seeds, settings)
    pairs, size = result.pairs, settings.size or 10**9
    believed = [pair for row, pair in enumerate(seeds) if row not in result.wrong_seeds]
    assert len(pairs) <= size
    for side, pool in enumerate((pools.x, pools.y)):
        assert {*pairs[:, side].tolist()} <= {*range(len(pool))}
        assert len(pairs[:, side].unique()) == len(pairs)
    assert [*map(tuple, pairs[: len(believed)].tolist())] == believed[:size]
    assert bool(((result.confidence >= 0) & (result.confidence <= 1)).all())
    assert bool((result.confidence[len(believed) :].diff() <= 0).all())
    assert 0 <= result.estimate.right <= 1
    assert 1 <= result.facts["attempts"] <= max(1, settings.attempts)
    return result


def test_a_few_seeds_find_the_hidden_order_in_a_larger_target():
    world = hidden_order(1, common=150, only_y=60, dy=40)
    found = checked_run(world.pools, world.seeds(4))
    assert world.right(found.pairs) > 0.97
    assert len(found.pairs) > 0.97 * 150
    assert found.estimate.right > 0.9
    assert found.wrong_seeds == []


def test_no_seed_is_needed_where_the_pools_are_alike():
    world = hidden_order(12, noise=0.1)
    found = checked_run(world.pools, [])
    assert len(found.pairs) > 280
    assert world.right(found.pairs) > 0.97
    assert found.estimate.right > 0.9


def test_unrelated_pools_are_not_believed_although_chance_confirms_many_pairs_in_few_directions():
    two = SelfLearningSettings(attempts=2)
    dense, wide = (
        checked_run(unrelated(1, d), [(i, i) for i in range(3)], two).estimate for d in (6, 64)
    )
    assert dense.confirmed > 0.6
    assert dense.by_chance > 0.6
    assert max(dense.right, wide.right) < 0.5
    assert math.isnan(wide.by_chance)
    assert checked_run(ALIKE.pools, ALIKE.seeds(5), two).estimate.by_chance < 0.6


def test_the_estimate_includes_items_without_a_partner():
    world = hidden_order(1, common=300, only_x=300, only_y=300, noise=0.3)
    found = checked_run(world.pools, world.seeds(10))
    assert found.estimate.right == pytest.approx(world.right(found.pairs), abs=0.12)
    assert float(found.confidence.mean()) == pytest.approx(found.estimate.right, abs=0.02)


def test_swapped_seeds_are_named_and_corrected():
    world = ALIKE
    true = world.seeds(10)
    swapped = true.copy()
    swapped[3], swapped[6] = (true[3][0], true[6][1]), (true[6][0], true[3][1])
    found = checked_run(world.pools, swapped)
    assert found.wrong_seeds == [3, 6]
    assert world.right(found.pairs) > 0.97
    assert set(true) <= {*map(tuple, found.pairs.tolist())}


def test_the_estimate_concerns_the_returned_pairs():
    world = hidden_order(1, common=140, only_x=10, only_y=10, noise=0.5)
    every, best = (
        checked_run(world.pools, world.seeds(5), SelfLearningSettings(size=size))
        for size in (None, 20)
    )
    assert every.confidence[5:].min() < every.confidence[5:].max()
    assert best.estimate.right > every.estimate.right
    assert best.estimate.right == pytest.approx(float(every.confidence[5:].max()), abs=1e-6)


@pytest.mark.parametrize("count", [0, 4])
@pytest.mark.parametrize("d", [1, 24])
def test_the_smallest_pools_have_valid_results(d, count, short):
    rows = normal(d, FEWEST_POOL_ITEMS, d)
    pools = fit_pools(rows, rows @ torch.linalg.qr(normal(2, d, d)).Q)
    checked_run(pools, [(i, i) for i in range(count)], short)


@pytest.mark.parametrize(
    ("seeds", "rows"),
    [
        ([(0, 300)], [0]),
        ([(1, 1), (-1, 0)], [1]),
        ([(0, 0), (1, 1), (0, 2)], [2]),
        ([(0, 0), (1, 0)], [1]),
    ],
)
def test_invalid_seeds_are_refused(seeds, rows):
    with pytest.raises(InvalidSeeds) as raised:
        learn(unrelated(1, 24), seeds, SelfLearningSettings())
    assert raised.value.rows == rows


def observed(
    pools: Pools, seeds: Seeds, settings: SelfLearningSettings, state: State | None = None
) -> tuple[Outcome, list[Step]]:
    steps: list[Step] = []
    return learn(pools, seeds, settings, state=state, on_step=steps.append), steps


@pytest.mark.parametrize("count", [0, 4])
def test_a_run_from_a_checkpoint_has_the_bits_of_an_uninterrupted_one(count, short):
    pools, seeds = NOISY.pools, NOISY.seeds(count)
    whole, steps = observed(pools, seeds, short)
    kept = [step.state for step in steps if step.state is not None]
    assert len(kept) == short.attempts
    for state in kept:
        found, later = observed(pools, seeds, short, load(save(dict(state))))
        assert bits(found) == bits(whole)
        # The last checkpoint has what all attempts found.
        *_, last = [state, *(step.state for step in later if step.state is not None)]
        assert torch.equal(last["partners"], kept[-1]["partners"])
    done = [step.done for step in steps]
    assert done == sorted(done)
    assert {step.total for step in steps} == {done[-1]}
    assert all(math.isfinite(value) for step in steps for value in step.facts.values())
