"""Fusion is a weighted sum of scores that ignores their offset and scale."""

import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.maths.relevance.rescoring import fuse, standardise

#: queries with three candidates, none, five and one, in any order
OWNERS = torch.tensor([2, 0, 2, 3, 0, 2, 2, 0, 2])


def draw(seed):
    return torch.randn(
        len(OWNERS), dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


@given(st.integers(0, 10_000), st.floats(-50, 50), st.floats(0.01, 50))
def test_standardised_scores_ignore_offset_and_scale(seed, offset, scale):
    scores = draw(seed)
    changed = standardise(scores * scale + offset, OWNERS)
    assert torch.allclose(changed, standardise(scores, OWNERS), atol=1e-6)


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_fused_scores_are_the_definition_of_each_query_alone(weight):
    new, old = draw(1), draw(2) * 3 + 1
    [fused] = fuse(new, old, OWNERS, [weight])
    for query in range(4):
        rows = [row for row, owner in enumerate(OWNERS.tolist()) if owner == query]
        for row in rows:
            expected = 0.0
            for scores, share in ((new, weight), (old, 1 - weight)):
                values = scores[rows].tolist()
                if len(values) > 1:
                    mean, spread = statistics.fmean(values), statistics.pstdev(values)
                    expected += share * (float(scores[row]) - mean) / spread
            assert math.isclose(float(fused[row]), expected, abs_tol=1e-12)


def test_equal_scores_become_zeros():
    equal = torch.full((9,), 0.7, dtype=torch.float64)
    assert torch.equal(standardise(equal, OWNERS), torch.zeros(9, dtype=torch.float64))
