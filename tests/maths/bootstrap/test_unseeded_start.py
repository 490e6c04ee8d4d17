"""A first overlap without seeds: matched centroids."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from app.maths.bootstrap.annealing import CentroidSettings, centroid_overlap
from app.maths.bootstrap.neighbours import no_beat
from tests.maths.bootstrap.clouds import normal, rotation


def groups(seed: int, count: int, each: int, d: int = 8) -> Tensor:
    """Unit rows about `count` places, a few more about each."""
    sizes = torch.arange(count) + each
    return normalize(
        (normalize(normal(seed, count, d)) + 0.03 * normal(seed + 1, count, d)).repeat_interleave(
            sizes, dim=0
        )
        + 0.02 * normal(seed + 2, int(sizes.sum()), d)
    )


def first(
    x: Tensor, y: Tensor, settings: CentroidSettings | None = None, *, seed: int = 0
) -> Tensor:
    return centroid_overlap(x, y, settings or CentroidSettings(), seed=seed, beat=no_beat)


def test_groups_of_a_turned_pool_are_matched_to_their_own():
    x, turn = groups(1, 12, 20), rotation(6, 8)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    found = first(x, x[order] @ turn, CentroidSettings(count=12))
    # The orthogonal map nearest to the overlap is nearly the rotation, except for a group that
    # k-means may have split.
    left, _, right = torch.linalg.svd(found)
    cosines = (x @ (left @ right) * (x @ turn)).sum(dim=1)
    assert float(cosines.mean()) > 0.9


def test_a_rotated_target_has_the_rotated_overlap():
    x, y, turn = groups(1, 12, 20), groups(4, 12, 20), rotation(7, 8)
    torch.testing.assert_close(first(x, y @ turn), first(x, y) @ turn, rtol=0, atol=1e-2)


@pytest.mark.parametrize("n", [2, 3, 20])
def test_the_smallest_pools_have_as_many_centroids_as_pairs_of_rows(n):
    found = first(normalize(normal(1, n, 4)), normalize(normal(2, n, 4)))
    assert bool(found.isfinite().all())
    assert found.abs().max() > 0


@pytest.mark.parametrize("different", [1, 2, 5])
def test_fewer_different_rows_than_centroids_raise_no_error(different):
    few, many = normalize(normal(1, different, 4)).repeat(60, 1), normalize(normal(2, 300, 4))
    for x, y in ((few, many), (many, few), (few, few)):
        assert bool(first(x, y).isfinite().all())
    assert first(torch.zeros(50, 4), many).abs().max() == 0  # rows of nothing
