"""Two ways to pick anchors from a pool."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.errors import DegenerateAnchors, InvalidOption
from app.maths.geometry.sampling import draw_uniformly
from app.maths.geometry.space import fit_space
from research.anchors import farthest
from tests.maths.clouds import normal

seeds = st.integers(0, 2**31)


@given(seed=seeds, pool=st.integers(1, 50), share=st.floats(0, 1))
def test_uniform_gives_size_distinct_indices_in_range_equal_for_equal_seeds(seed, pool, share):
    size = max(1, round(share * pool))
    found = draw_uniformly(pool, size=size, seed=seed)
    assert len(found) == len(set(found)) == size
    assert all(0 <= index < pool for index in found)
    assert found == draw_uniformly(pool, size=size, seed=seed)


def test_uniform_reaches_every_item_and_other_seeds_choose_others():
    assert sorted(draw_uniformly(20, size=20, seed=3)) == list(range(20))
    assert {index for seed in range(100) for index in draw_uniformly(20, size=2, seed=seed)} == set(
        range(20)
    )


@given(seed=seeds, size=st.integers(1, 25))
def test_farthest_gives_size_distinct_indices_in_range_equal_for_equal_seeds(seed, size):
    pool = normal(seed, 25, 4)
    found = farthest(pool, size=size, seed=seed)
    assert len(found) == len(set(found)) == size
    assert all(0 <= index < 25 for index in found)
    assert found == farthest(pool, size=size, seed=seed)


@given(seed=seeds)
def test_each_farthest_item_is_the_one_least_similar_to_those_before_it(seed):
    pool = normal(seed, 25, 4)
    unit = fit_space(pool).unit
    found = farthest(pool, size=8, seed=seed)
    for position in range(1, 8):
        nearness = (unit @ unit[found[:position]].T).abs().amax(dim=1)
        nearness[found[:position]] = 2.0
        assert float(nearness[found[position]]) <= float(nearness.min()) + 1e-12


def test_farthest_never_takes_an_item_without_direction():
    half = normal(3, 5, 4)
    pool = torch.cat([half, torch.zeros(2, 4, dtype=torch.float64), -half])
    for seed in range(20):
        assert sorted(farthest(pool, size=12, seed=seed)) == [0, 1, 2, 3, 4, 7, 8, 9, 10, 11]


@pytest.mark.parametrize("size", [-1, 0, 11])
def test_a_size_outside_one_to_the_pool_is_refused(size):
    pool = normal(5, 10, 3)
    for choose in (
        lambda: draw_uniformly(10, size=size, seed=0),
        lambda: farthest(pool, size=size, seed=0),
    ):
        with pytest.raises(InvalidOption) as caught:
            choose()
        assert caught.value.field == "size"


def test_a_pool_of_one_repeated_item_is_degenerate():
    with pytest.raises(DegenerateAnchors):
        farthest(torch.ones(10, 3), size=2, seed=0)
