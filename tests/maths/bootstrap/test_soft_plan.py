"""Anchor optimisation with a soft plan; test_anchor_optimisation.py has the shared tests."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.maths.bootstrap import paper
from app.maths.bootstrap.pools import GrownPairs, Pools, fit_pools
from app.maths.bootstrap.soft_plan import SoftPlanSettings, epsilon_share, grow, mean_cost
from tests.maths.bootstrap.clouds import normal


def noisy(seed: int) -> tuple[Pools, list[int]]:
    """400 items with falling variances, as encoders' have, and a noisy reordered rotation of them.

    partner[i] is the row of item i in the second pool.
    """
    spread = torch.arange(1, 65) ** -0.5
    source, (rotation, _) = (
        normal(seed, 400, 64) * spread,
        torch.linalg.qr(normal(seed + 1, 64, 64)),
    )
    partner = torch.randperm(400, generator=torch.Generator().manual_seed(7))
    target = torch.empty(400, 64)
    target[partner] = (source + 0.5 * spread * normal(seed + 3, 400, 64)) @ rotation
    return fit_pools(source, target), partner.tolist()


@given(steps=st.integers(2, 500), first=st.floats(0.1, 1.0), last=st.floats(0.001, 0.1))
def test_epsilon_falls_geometrically_from_the_first_share_to_the_last(steps, first, last):
    settings = SoftPlanSettings(size=10, steps=steps, first_epsilon=first, last_epsilon=last)
    shares = [epsilon_share(settings, step) for step in range(steps)]
    assert (
        shares[0]
        == epsilon_share(SoftPlanSettings(size=10, steps=1, first_epsilon=first), 0)
        == pytest.approx(first)
    )
    assert shares[-1] == pytest.approx(last)
    ratios = [math.log(later / earlier) for earlier, later in pairwise(shares)]
    assert ratios == pytest.approx([math.log(last / first) / (steps - 1)] * (steps - 1), abs=1e-9)


def test_the_mean_cost_is_that_of_all_rows_where_they_are_few_and_near_it_where_they_are_many():
    x, y = normal(1, 100, 5), normal(2, 300, 5)
    assert mean_cost(x, y) == pytest.approx(float(torch.cdist(x, y).mean()), rel=1e-5)
    x, y = normal(3, 3_000, 5), normal(4, 2_000, 5)
    assert mean_cost(x, y) == pytest.approx(float(torch.cdist(x, y).mean()), rel=0.05)


def test_pools_whose_relative_vectors_are_all_the_same_have_a_cost_above_0():
    same = torch.nn.functional.normalize(torch.ones(20, 3))
    assert mean_cost(same, same) > 0
    found = grow(Pools(same, same), [(0, 0), (1, 1)], SoftPlanSettings(size=5, steps=3))
    assert found.pairs.tolist()[:2] == [[0, 0], [1, 1]]
    assert math.isfinite(found.facts["loss"])


@pytest.mark.parametrize("seed", [15, pytest.param(25, marks=pytest.mark.long)])
def test_finds_more_partners_than_hard_choices_where_seeds_are_few_and_noise_is_large(seed):
    pools, partner = noisy(seed)
    seeds = [(i, partner[i]) for i in range(8)]

    def right(found: GrownPairs) -> float:
        new = found.pairs.tolist()[8:]
        return sum(partner[i] == j for i, j in new) / len(new)

    soft = right(grow(pools, seeds, SoftPlanSettings(size=60)))
    hard = right(paper.grow(pools, seeds, paper.PaperSettings(size=60)))
    assert soft > 0.4
    assert soft > hard + 0.2
