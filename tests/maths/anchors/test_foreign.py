"""Anchors of another corpus are found by a sample of the store."""

from __future__ import annotations

import pytest
import torch

from app.maths.anchors.foreign import FEWEST_SAMPLED, FOREIGN_LEVEL, MAX_SAMPLED, compare_with_store
from tests.maths.clouds import normal

#: Two corpora of one encoder: each has its own subspace and mean.
SUBSPACES = normal(0, 4, 24), normal(1, 4, 24)
MEANS = normal(2, 1, 24), normal(3, 1, 24)


def corpus(which: int, rows: int, seed: int):
    return normal(seed, rows, 4) @ SUBSPACES[which] + MEANS[which]


def test_anchors_of_another_corpus_are_foreign_and_those_of_the_store_are_not():
    anchors = torch.cat([corpus(0, 100, 10), corpus(1, 60, 11)])
    found = compare_with_store(anchors, corpus(0, 300, 12))
    assert found.foreign[100:].double().mean() > 0.95
    assert found.foreign[:100].double().mean() < 2 * FOREIGN_LEVEL
    assert found.share == pytest.approx(60 / 160, abs=0.06)
    assert found.has_foreign
    assert found.sampled == 300


def test_anchors_of_the_store_are_called_foreign_at_their_level_only():
    shares = []
    for seed in range(20):
        found = compare_with_store(corpus(0, 100, 100 + seed), corpus(0, 200, 200 + seed))
        shares.append(float(found.foreign.double().mean()))
        assert not found.has_foreign
    assert sum(shares) / len(shares) == pytest.approx(FOREIGN_LEVEL, abs=0.02)


def test_a_small_sample_is_not_compared_and_of_a_large_one_some_rows_are():
    anchors = corpus(0, 20, 19)
    assert compare_with_store(anchors, corpus(0, FEWEST_SAMPLED - 1, 20)) is None
    found = compare_with_store(anchors, corpus(0, MAX_SAMPLED + 1, 20))
    assert found.sampled == MAX_SAMPLED
