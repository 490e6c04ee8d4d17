"""The blocks of cosines, and the skewness of their results."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from app.maths.quality import metrics
from app.maths.quality.evaluation import skewness
from app.maths.quality.metrics import cosine_blocks, unit
from tests.maths.clouds import normal

seeds = st.integers(0, 2**31)


def whole(blocks: metrics.ScoreBlocks) -> Tensor:
    return torch.cat([block for _, block in blocks])


def test_blocks_hold_no_more_cosines_than_are_allowed_however_long_the_index_is(monkeypatch):
    monkeypatch.setattr(metrics, "MAX_COSINES", 100)
    x, y = unit(normal(0, 33, 6)), unit(normal(1, 40, 6))
    assert [(start, *block.shape) for start, block in cosine_blocks(x, y)][:2] == [
        (0, 2, 40),
        (2, 2, 40),
    ]
    assert [block.shape for _, block in cosine_blocks(x[:2], unit(normal(2, 500, 6)))] == [
        (1, 500)
    ] * 2
    torch.testing.assert_close(whole(cosine_blocks(x, y)), x @ y.T)


@given(seed=seeds, n=st.integers(1, 40), m=st.integers(2, 30))
def test_skewness_is_that_of_the_counts(seed, n, m):
    k = min(3, m)
    near = torch.stack(
        [torch.randperm(m, generator=torch.Generator().manual_seed(seed + i))[:k] for i in range(n)]
    )
    counts = np.array([(near == row).sum() for row in range(m)])
    third = np.mean([(count - counts.mean()) ** 3 for count in counts])
    expected = third / counts.std() ** 3 if counts.std() > 0 else 0.0
    assert skewness(near, m) == pytest.approx(expected, abs=1e-9)
