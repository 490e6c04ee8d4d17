"""Thresholds: as many pairs reach the new one as the old one, and missing data is reported."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from app.maths.quality.crossfit import FEWEST_DISTINCT
from app.maths.thresholds import ScorePairs, find_threshold, score_pairs
from app.maths.translators.methods import resolve
from app.types import Scores
from tests.maths.clouds import normal

NATIVE, TRANSLATED = Scores.native_native, Scores.translated_native


def clustered(seed: int, items: int, dim: int) -> Tensor:
    """Items around twelve uncentred clusters: cosines from -.5 to .95, most of them low."""
    centre = torch.randint(12, (items,), generator=torch.Generator().manual_seed(seed))
    spread = 0.2 + 0.8 * torch.rand(
        items, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 1)
    )
    return normal(7, 12, dim)[centre] + spread * normal(seed + 2, items, dim) + 0.3


def noisy_pair(seed: int, items: int) -> tuple[Tensor, Tensor]:
    """The same items by two encoders, 16-d and 12-d; the second is a noisy map of the first."""
    source = clustered(seed, items, 16)
    return source, source @ normal(8, 16, 12) + 2.0 * normal(seed + 3, items, 12)


def pairs_of(source: Tensor, target: Tensor, scores: Scores = NATIVE) -> ScorePairs:
    options = resolve("ridge", {}, anchors=len(source))
    pairs = score_pairs("ridge", source, target, options, scores)
    assert pairs is not None
    return pairs


@cache
def noisy(scores: Scores) -> ScorePairs:
    return pairs_of(*noisy_pair(0, 150), scores)


@pytest.mark.parametrize("scores", Scores)
def test_the_rate_matched_threshold_accepts_the_same_share(scores):
    rows = noisy(scores)
    for score in (0.0, 0.3, 0.5, 0.7):
        found = find_threshold(rows, score)
        reached = float((rows.new >= found.by_rate).double().mean())
        assert reached == pytest.approx(found.share, abs=2e-3)


@pytest.mark.parametrize("score", [-1.0, -0.99, 0.999, 1.0])
def test_beyond_the_anchors_scores_there_is_no_threshold(score):
    for scores in Scores:
        assert find_threshold(noisy(scores), score).by_rate is None


def test_too_few_distinct_anchors_have_no_pairs_and_ten_have_some():
    source, target = normal(0, FEWEST_DISTINCT, 4), normal(1, FEWEST_DISTINCT, 3)
    options = resolve("ridge", {}, anchors=FEWEST_DISTINCT)
    nine = source[:-1].repeat(3, 1), target[:-1].repeat(3, 1)
    assert score_pairs("ridge", *nine, options, NATIVE) is None
    assert find_threshold(pairs_of(source, target, TRANSLATED), 0.0).share > 0


def test_a_pair_counts_once_whatever_the_directions_and_rounds_and_copies_make_none():
    source, target = noisy_pair(0, 40)
    for scores in (NATIVE, TRANSLATED):
        rows = pairs_of(source.repeat(3, 1), target.repeat(3, 1), scores)
        assert float(rows.old.max()) < 0.9999
        assert find_threshold(rows, -1.0).pairs_above == len(torch.unique(rows.pair)) <= 40 * 39 / 2
