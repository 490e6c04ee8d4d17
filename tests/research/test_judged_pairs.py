"""The verdict on pairs that came without an estimate."""

from __future__ import annotations

import math

import pytest
import torch

from app.maths.bootstrap.estimate import Outcome
from app.maths.bootstrap.pools import Pools, fit_pools
from research.anchor_optimisation import judge_pairs
from research.grown_pairs import GrownPairs
from tests.maths.bootstrap.clouds import normal

Seeds = list[tuple[int, int]]


def world(seed: int, n: int = 120, d: int = 16, *, noise: float = 0.1) -> tuple[Pools, Seeds]:
    """Noisy rotations of one cloud in two orders, and all true pairs."""
    items, turn = normal(seed, n, d), torch.linalg.qr(normal(seed + 1, d, d)).Q
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    target = torch.empty(n, d)
    target[order] = (items + noise * normal(seed + 2, n, d)) @ turn
    return fit_pools(items, target), list(enumerate(order.tolist()))


def grown(pairs: Seeds) -> GrownPairs:
    rows = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
    return GrownPairs(rows, torch.full((len(rows),), torch.nan), {"loss": 0.5})


def judged(pools: Pools, seeds: Seeds, pairs: Seeds, *, seed: int = 0) -> Outcome:
    return judge_pairs(pools, seeds, grown(pairs), seed=seed)


@pytest.mark.parametrize(("seed", "count"), [(1, 10), (11, 10), (1, 0)])
def test_true_pairs_are_believed_with_seeds_and_without(seed, count):
    pools, true = world(seed)
    told = judged(pools, true[:count], true)
    assert told.estimate.right > 0.9
    assert (
        told.estimate.seeds_confirmed == 1.0 if count else math.isnan(told.estimate.seeds_confirmed)
    )
    assert math.isnan(told.estimate.agreement)
    assert told.wrong_seeds == []
    assert told.pairs.tolist() == [[i, j] for i, j in true]


@pytest.mark.parametrize("seed", [1, 11])
def test_random_pairs_are_not_believed(seed):
    pools, true = world(seed)
    order = torch.randperm(120, generator=torch.Generator().manual_seed(seed + 5)).tolist()
    told = judged(pools, true[:10], [(i, j) for i, j in enumerate(order)])
    assert told.estimate.right < 0.1
    assert told.estimate.seeds_confirmed < 0.5


def test_pairs_of_unrelated_pools_are_not_believed_although_a_map_fits_them():
    pools = fit_pools(normal(1, 90, 100), normal(2, 90, 100))
    told = judged(pools, [(i, i) for i in range(5)], [(i, i) for i in range(90)])
    assert told.estimate.right < 0.1


def test_confidence_separates_the_right_half_from_the_wrong_one():
    pools, true = world(1)
    mixed = true[:80] + [(i, true[i + 1][1]) for i in range(80, 119)]
    told = judged(pools, true[:10], mixed)
    assert float(told.confidence[:80].mean()) > 0.8
    assert float(told.confidence[80:].mean()) < 0.1
    assert told.estimate.right == pytest.approx(float(told.confidence.mean()))


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_very_few_pairs_are_judged_without_a_nan(count):
    pools, true = world(1)
    told = judged(pools, true[:2], true[:count])
    assert 0 <= told.estimate.right <= 1
    assert math.isfinite(told.estimate.confirmed)
    assert told.confidence.shape == (count,)


def test_a_judgement_is_the_same_for_equal_seeds_and_for_any_memory():
    pools, true = world(1, noise=0.8)
    one, again, narrow = (
        judged(pools, true[:5], true),
        judged(pools, true[:5], true),
        judged(pools, true[:5], true),
    )
    assert torch.equal(one.confidence, again.confidence)
    assert torch.equal(one.confidence, narrow.confidence)
    assert not torch.equal(one.confidence, judged(pools, true[:5], true, seed=1).confidence)
