"""Anchors that are the medoids of clusters, or far apart."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from app.errors import DegenerateAnchors, InvalidOption
from app.maths.geometry.space import fit_space
from research.anchors import farthest, medoids
from tests.maths.clouds import normal

seeds = st.integers(0, 2**31)


def clusters() -> Tensor:
    """Six far clusters of ten items each, in order."""
    return 20 * normal(0, 6, 8).repeat_interleave(10, dim=0) + 0.1 * normal(1, 60, 8)


@pytest.mark.parametrize("seed", range(5))
def test_medoids_find_one_item_of_every_well_separated_cluster(seed):
    found = medoids(clusters(), size=6, seed=seed)
    assert [index // 10 for index in found] == [0, 1, 2, 3, 4, 5]


@given(seed=seeds)
def test_the_only_medoid_is_the_item_nearest_to_the_mean_direction(seed):
    # Squaring skews the pool: balanced directions would leave no nearest item.
    pool = normal(seed, 25, 4).square()
    unit = fit_space(pool).unit
    assert medoids(pool, size=1, seed=seed) == [int((unit - unit.mean(dim=0)).norm(dim=1).argmin())]


@given(seed=seeds, size=st.integers(1, 25))
def test_medoids_give_at_most_size_distinct_sorted_indices_equal_for_equal_seeds(seed, size):
    pool = normal(seed, 25, 4)
    found = medoids(pool, size=size, seed=seed)
    assert 1 <= len(found) <= size
    assert found == sorted(set(found))
    assert all(0 <= index < 25 for index in found)
    assert found == medoids(pool, size=size, seed=seed)


def test_medoids_of_a_pool_of_duplicates_are_distinct_items():
    found = medoids(normal(4, 2, 3).repeat(10, 1), size=5, seed=0)
    assert 1 <= len(found) == len(set(found)) <= 5


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


@pytest.mark.parametrize("choose", [farthest, medoids])
@pytest.mark.parametrize("size", [-1, 0, 11])
def test_a_size_outside_one_to_the_pool_is_refused(size, choose):
    with pytest.raises(InvalidOption) as caught:
        choose(normal(5, 10, 3), size=size, seed=0)
    assert caught.value.field == "size"


@pytest.mark.parametrize("choose", [farthest, medoids])
def test_a_pool_of_one_repeated_item_is_degenerate(choose):
    with pytest.raises(DegenerateAnchors):
        choose(torch.ones(10, 3), size=2, seed=0)
