"""CSLS compared with loops over its definition, and its effect on a hub."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from app.maths.quality import metrics
from app.maths.quality.evaluation import csls, skewness
from app.maths.quality.metrics import cosine_blocks, search, unit
from tests.maths.clouds import cos, normal

seeds = st.integers(0, 2**31)


def whole(blocks: metrics.ScoreBlocks) -> Tensor:
    return torch.cat([block for _, block in blocks])


def naive_csls(x: np.ndarray, y: np.ndarray, k: int) -> np.ndarray:
    """2 cos(x, y) - r_T(x) - r_S(y), one pair at a time."""

    def mean_of_nearest(a: np.ndarray, others: np.ndarray) -> float:
        return float(np.mean(sorted((cos(a, b) for b in others), reverse=True)[:k]))

    return np.array(
        [[2 * cos(a, b) - mean_of_nearest(a, y) - mean_of_nearest(b, x) for b in y] for a in x]
    )


@given(seed=seeds, n=st.integers(2, 9), m=st.integers(2, 9), k=st.integers(1, 9))
def test_csls_equals_a_loop_over_its_definition(seed, n, m, k):
    x, y, k = normal(seed, n, 4), normal(seed + 1, m, 4), min(k, n, m)
    found = whole(csls(unit(x), unit(y), k))
    np.testing.assert_allclose(found.numpy(), naive_csls(x.numpy(), y.numpy(), k), atol=1e-12)


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


def test_rows_equally_near_to_all_queries_change_no_order():
    """One more dimension of the same size in every query and no row: all cosines shrink alike."""
    x, y = normal(2, 30, 5), normal(3, 40, 5)
    wider = torch.cat([unit(x), torch.ones(30, 1)], dim=1)
    padded = torch.cat([unit(y), torch.zeros(40, 1)], dim=1)
    first = search(csls(unit(x), unit(y), 10), 5, own=False).near
    assert torch.equal(search(csls(unit(wider), unit(padded), 10), 5, own=False).near, first)


def test_csls_removes_a_hub_from_all_searches_but_its_partners():
    """Partners on the axes, and a central hub, nearer to every query than its own partner."""
    queries = unit(torch.eye(6, dtype=torch.float64) + 0.8)
    index = torch.cat(
        [torch.eye(6, dtype=torch.float64), unit(torch.ones(1, 6, dtype=torch.float64))]
    )
    plain, corrected = (
        search(scores, 1, own=False)
        for scores in (cosine_blocks(queries, index), csls(queries, index, 3))
    )
    assert plain.near[:, 0].tolist() == [6] * 6
    assert corrected.near[:, 0].tolist() == list(range(6))
    assert skewness(plain.near, 7) > 2
    assert skewness(corrected.near, 7) < -2


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
