"""Evaluations against loops over their definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from app.maths.quality import metrics
from app.maths.quality.evaluation import cosine_count, evaluate
from app.maths.quality.metrics import cosine_blocks, mean_quality, unit
from research.definitions import item_metrics, measure
from tests.maths.clouds import normal

seeds = st.integers(0, 2**31)


def best(scores: np.ndarray, k: int) -> list[int]:
    """The k rows with the largest scores."""
    return sorted(range(len(scores)), key=lambda j: -scores[j])[:k]


@given(seed=seeds, k=st.integers(1, 5))
def test_with_a_corpus_every_number_is_that_of_a_loop(seed, k):
    native, corpus = normal(seed, 8, 5), normal(seed + 1, 12, 5)
    translated = native + 0.7 * normal(seed + 2, 8, 5)
    numbers = evaluate({"translated": translated}, native, k, corpus=corpus)["translated"]
    t, y, c = (unit(rows) for rows in (translated, native, corpus))
    scores, truth = (t @ c.T).numpy(), (y @ c.T).numpy()
    for i in range(8):
        ours, wanted = best(scores[i], k), best(truth[i], k)
        both = len(set(ours) & set(wanted))
        assert float(numbers.recall[i]) == pytest.approx(both / k)
        assert float(numbers.recall_1[i]) == (ours[0] == wanted[0])
        assert float(numbers.jaccard_target[i]) == pytest.approx(both / (2 * k - both))
        assert float(numbers.reciprocal_rank[i]) == pytest.approx(
            1 / sum(scores[i] >= scores[i][wanted[0]])
        )
    own = item_metrics(translated, native, k)
    assert torch.equal(numbers.jaccard_own, own.jaccard_own)
    assert torch.equal(numbers.cosine, own.cosine)


@given(seed=seeds)
def test_without_a_corpus_an_evaluation_has_the_quality_of_reports(seed):
    native = normal(seed, 15, 4)
    translated = native + normal(seed + 1, 15, 4)
    found = evaluate({"translated": translated, "native": native}, native, 10)
    assert mean_quality(found["translated"]) == measure(translated, native)
    assert mean_quality(found["native"]) == measure(native, native)


@pytest.mark.parametrize("corpus", [None, 9, 40])
def test_the_predicted_number_of_cosines_is_computed(corpus):
    native = normal(4, 20, 3)
    asked = 0

    def counted(queries: Tensor, index: Tensor) -> metrics.ScoreBlocks:
        nonlocal asked
        asked += len(queries) * len(index)
        return cosine_blocks(queries, index)

    queries = {"translated": normal(5, 20, 3), "do_nothing": normal(6, 20, 3), "native": native}
    index = None if corpus is None else normal(7, corpus, 3)
    evaluate(queries, native, 4, corpus=index, cosines=counted)
    assert asked == cosine_count(3, 20, corpus)


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
    whole = torch.cat([block for _, block in cosine_blocks(x, y)])
    torch.testing.assert_close(whole, x @ y.T)
