"""The inverse cloze test: what is cut, how ranks count, and the interval of a mean."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.maths.relevance.cloze import (
    MAX_WINDOW,
    MIN_WINDOW,
    MIN_WORDS,
    cut_windows,
    mean_interval,
    reciprocal_ranks,
)


@given(st.lists(st.integers(0, 60), max_size=12), st.integers(1, 8))
def test_a_window_and_its_rest_are_the_text(lengths, count):
    texts = [" ".join(f"{row}:{word}" for word in range(n)) for row, n in enumerate(lengths)]
    pairs = cut_windows([*texts, *texts], count)
    assert len(pairs) == min(count, sum(n >= MIN_WORDS for n in lengths))
    origins = set()
    for window, rest in pairs:
        words, left = window.split(), rest.split()
        assert MIN_WINDOW <= len(words) <= MAX_WINDOW
        start = int(words[0].split(":")[1])
        whole = " ".join([*left[:start], *words, *left[start:]])
        assert whole in texts
        origins.add(whole)
    assert len(origins) == len(pairs)


def test_a_rank_counts_nearer_rests_and_half_of_the_equal_ones():
    windows = torch.eye(4)
    rests = torch.tensor([[2.0, 0, 0, 0], [0, 1, 1, 0], [0, 2, 1, 0], [0, 0, 0, 1]])
    assert reciprocal_ranks(windows, rests).tolist() == pytest.approx([1, 1 / 2, 1 / 2, 1])
    same = torch.ones(5, 3)
    assert reciprocal_ranks(same, same).tolist() == pytest.approx([1 / 3] * 5)


def test_the_interval_of_a_mean_is_1_96_standard_errors_on_each_side():
    found, half = mean_interval(torch.tensor([0.0, 1.0, 2.0])), 1.96 / 3**0.5
    assert (found.low, found.value, found.high) == pytest.approx((1 - half, 1, 1 + half))
