"""Anchors that are the medoids of clusters."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from app.errors import DegenerateAnchors, InvalidOption
from app.maths.geometry.space import fit_space
from research.anchors import medoids

seeds = st.integers(0, 2**31)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


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


@pytest.mark.parametrize("size", [-1, 0, 11])
def test_a_size_outside_one_to_the_pool_is_refused(size):
    with pytest.raises(InvalidOption) as caught:
        medoids(normal(5, 10, 3), size=size, seed=0)
    assert caught.value.field == "size"


def test_a_pool_of_one_repeated_item_is_degenerate():
    with pytest.raises(DegenerateAnchors):
        medoids(torch.ones(10, 3), size=2, seed=0)
