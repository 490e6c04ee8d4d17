"""The orthogonal map and its refinement by neighbours."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize

from app.maths.alignment.alignment import Rounds, mean_rows, neighbours, orthogonal, refine
from tests.maths.alignment.clouds import mixing, two_pools

ROUNDS = Rounds(6, 800, 5)


@pytest.mark.parametrize("dims", [(6, 6), (4, 7), (7, 4)])
def test_no_other_orthogonal_map_fits_an_overlap_better(dims):
    overlap = mixing(0, *dims)
    best = orthogonal(overlap)
    gram = best @ best.T if dims[0] <= dims[1] else best.T @ best
    assert torch.allclose(gram, torch.eye(min(dims)), atol=1e-5)
    for seed in range(20):
        other = orthogonal(mixing(seed, *dims))
        assert float((other * overlap).sum()) <= float((best * overlap).sum()) + 1e-5


def test_neighbours_are_those_of_the_whole_table():
    q, y = normalize(mixing(1, 40, 5)), normalize(mixing(2, 60, 5))
    cosines = q @ y.T
    hub_q = cosines.topk(10, dim=1).values.mean(dim=1)
    hub_y = cosines.topk(10, dim=0).values.mean(dim=0)
    csls = 2 * cosines - hub_q[:, None] - hub_y
    of_q, of_y = neighbours(q, y, 3)
    assert torch.equal(of_q.sort().values, csls.topk(3, dim=1).indices.sort().values)
    assert torch.equal(of_y.sort().values, csls.topk(3, dim=0).indices.T.sort().values)


def test_pools_smaller_than_the_neighbourhood_are_averaged_whole():
    q, y = normalize(mixing(1, 3, 5)), normalize(mixing(2, 2, 5))
    of_q, of_y = neighbours(q, y, 20)
    assert (of_q.shape, of_y.shape) == ((3, 2), (2, 2))
    assert torch.allclose(mean_rows(y, of_q), y.mean(dim=0).expand(3, 5))


def test_a_rough_map_becomes_the_right_one_on_pools_that_share_no_item():
    x, y, truth = two_pools(1_500)
    rough = orthogonal(truth + 0.25 * mixing(5, *truth.shape))
    refined = refine(x, y, rough, ROUNDS, seed=0)

    def mean_cosine(rotation):
        right = normalize(x @ truth)
        return float((normalize(x @ rotation) * right).sum(dim=1).mean())

    assert mean_cosine(rough) < 0.8
    assert mean_cosine(refined) > 0.97
