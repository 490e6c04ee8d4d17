"""A promise is the held-out quality plus the gain of the learning curve."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.demo.pack import load_pack
from app.maths.quality.crossfit import HeldOutQuality, QualityWithIntervals, cross_fit
from app.maths.quality.learning_curve import LearningCurve, learning_curve
from app.maths.quality.promise import promise
from app.maths.translators.methods import resolve

CURVED = {"recall", "mrr", "cosine"}


def held_out(value: float) -> HeldOutQuality:
    names = ("cosine", "mrr", "recall", "recall_1", "jaccard_target", "jaccard_own")
    one = QualityWithIntervals(
        50, 4, *[value] * 6, intervals=dict.fromkeys(names, (value - 0.1, value + 0.1)), index=10.0
    )
    return HeldOutQuality(5, one, one, one)


def test_without_a_curve_the_promise_is_what_was_held_out():
    made = promise(60, held_out(0.5), None)
    assert (made.anchors, made.index, made.neighbours) == (60, 10, 4)
    assert {tuple(round(end, 12) for end in each) for each in made.measures.values()} == {
        (0.5, 0.4, 0.6)
    }


@cache
def curve_of_60() -> LearningCurve:
    generator = torch.Generator().manual_seed(0)
    source = torch.randn(60, 20, generator=generator).double()
    target = source @ torch.randn(20, 12, generator=generator).double()
    curve = learning_curve("ridge", source, target, resolve("ridge", {}, anchors=60))
    assert curve is not None
    return curve


@given(value=st.floats(-0.5, 1.0))
def test_with_a_curve_a_promise_is_no_lower_and_below_1(value):
    for name, each in promise(60, held_out(value), curve_of_60()).measures.items():
        assert value <= each.value <= max(value, (1 + value) / 2)
        assert each.low <= each.value <= max(each.high, 1.0)
        assert (each.value > value) <= (name in CURVED)


@pytest.mark.parametrize("k", [100, 250])
def test_on_real_sentences_it_is_nearer_to_the_full_fit_than_what_was_held_out(k):
    first, second, *_ = (vectors[:k].double() for vectors in load_pack().vectors.values())
    options = resolve("graded", {}, anchors=k)
    found = cross_fit("graded", first, second, options)
    made = promise(k, found, learning_curve("graded", first, second, options))
    for name in CURVED:
        held = getattr(found.translated, name)
        assert held < made.measures[name].value < held + 0.1 or held == 1.0
