"""Overlaps of rankings and reciprocal ranks, as functions of the size of the index."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from app.maths.quality.index_curves import overlap_to_y, thinned_reciprocal_rank, y_to_overlap


@given(y=st.floats(-1.5, 1.6), share=st.floats(1e-9, 0.4))
def test_y_and_overlap_are_inverse(y, share):
    given_y = torch.tensor([y], dtype=torch.float64)
    overlap = y_to_overlap(given_y, share)
    back = overlap_to_y(overlap, torch.tensor([share], dtype=torch.float64))
    assert share <= overlap.item() <= 1
    assert abs(back.item() - y) < 1e-6
    ends = overlap_to_y(torch.tensor([0, share, 1]).double(), torch.tensor([share]).double())
    assert ends[0] == ends[1] > y > ends[2]


def test_the_overlap_of_exponential_tails_with_gaussian_noise_is_2_phi():
    """By simulation: noise of deviation t on scores with a tail of scale 1, whatever the share."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.empty(400_000, dtype=torch.float64).exponential_(generator=generator)
    for noise in (0.5, 1.0, 2.0):
        found = scores + noise * torch.randn(400_000, generator=generator).double()
        for share in (0.001, 0.01):
            count = int(share * len(scores))
            lists = (set(each.topk(count).indices.tolist()) for each in (scores, found))
            overlap = len(set.intersection(*lists)) / count
            expected = y_to_overlap(torch.tensor([noise]).double().log(), share).item()
            assert abs(overlap - expected) < 0.05


def test_a_thinned_rank_is_the_mean_over_random_indexes():
    ranks = torch.tensor([1, 2, 5, 40])
    generator = torch.Generator().manual_seed(1)
    for kept in (1.0, 0.3):
        above = torch.stack(
            [
                (torch.rand(20_000, int(rank) - 1, generator=generator) < kept).sum(dim=1)
                for rank in ranks
            ]
        )
        expected = (1.0 / (1 + above).double()).mean(dim=1)
        assert torch.allclose(thinned_reciprocal_rank(ranks, kept), expected, atol=0.01)
    assert thinned_reciprocal_rank(ranks, 1.0).tolist() == [1.0, 0.5, 0.2, 0.025]
