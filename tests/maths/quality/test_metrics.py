"""Every metric against a loop over its definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.maths.quality.metrics import (
    cosine,
    do_nothing,
)
from research.definitions import item_metrics, jaccard, measure, mrr, ranks, recall
from tests.maths.clouds import cos, normal

seeds = st.integers(0, 2**31)


def nearest(query: np.ndarray, index: np.ndarray, k: int, leave_out: int | None) -> set[int]:
    """The k items most similar to the query, one cosine at a time."""
    items = [j for j in range(len(index)) if j != leave_out]
    return set(sorted(items, key=lambda j: -cos(query, index[j]))[:k])


@given(seed=seeds, noise=st.floats(0.1, 3))
def test_cosine_mrr_recall_and_jaccards_equal_loops_over_their_definitions(seed, noise):
    native = normal(seed, 14, 5)
    translated = native + noise * normal(seed + 1, 14, 5)
    t, y, k = translated.numpy(), native.numpy(), 4
    reciprocal, found, target_jaccard, own_jaccard = [], [], [], []
    for i in range(14):
        similar = [cos(t[i], y[j]) for j in range(14)]
        reciprocal.append(1 / sum(s >= similar[i] for s in similar))
        ours, truth = nearest(t[i], y, k, i), nearest(y[i], y, k, i)
        found.append(len(ours & truth) / k)
        ours, truth = nearest(t[i], y, k, None), nearest(y[i], y, k, None)
        target_jaccard.append(len(ours & truth) / len(ours | truth))
        ours, truth = nearest(t[i], t, k, i), nearest(y[i], y, k, i)
        own_jaccard.append(len(ours & truth) / len(ours | truth))
    assert cosine(translated, native) == pytest.approx(
        np.mean([cos(t[i], y[i]) for i in range(14)])
    )
    assert mrr(translated, native) == pytest.approx(np.mean(reciprocal))
    assert recall(translated, native, k) == pytest.approx(np.mean(found))
    assert jaccard(translated, native, k) == pytest.approx(np.mean(target_jaccard))
    assert jaccard(translated, native, k, own_space=True) == pytest.approx(np.mean(own_jaccard))


@given(seed=seeds, n=st.integers(2, 30), noise=st.floats(0.1, 3))
def test_the_numbers_of_the_items_have_the_means_that_are_reported(seed, n, noise):
    native = normal(seed, n, 5)
    translated = native + noise * normal(seed + 1, n, 5)
    k = min(10, n - 1)
    items, found = item_metrics(translated, native), measure(translated, native)
    assert (items.k, found.k, found.n) == (k, k, n)
    for one, other in (
        (found.cosine, cosine(translated, native)),
        (found.mrr, mrr(translated, native)),
        (found.recall, recall(translated, native, k)),
        (found.jaccard_target, jaccard(translated, native, k)),
        (found.jaccard_own, jaccard(translated, native, k, own_space=True)),
    ):
        assert one == pytest.approx(other, abs=1e-12)
    assert found.recall_1 == pytest.approx(recall(translated, native, 1), abs=1e-12)
    assert torch.equal(items.reciprocal_rank, 1.0 / ranks(translated, native).double())


def test_a_tie_counts_against_the_translation():
    native = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert ranks(native, native).tolist() == [2, 2, 1]
    assert mrr(native, native) == pytest.approx((0.5 + 0.5 + 1) / 3)


def test_doing_nothing_cuts_or_pads_with_zeros():
    source = torch.tensor([[1.0, 2.0, 3.0]])
    assert do_nothing(source, 2).tolist() == [[1.0, 2.0]]
    assert do_nothing(source, 3).tolist() == [[1.0, 2.0, 3.0]]
    assert do_nothing(source, 5).tolist() == [[1.0, 2.0, 3.0, 0.0, 0.0]]
