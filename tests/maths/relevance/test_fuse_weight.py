"""A weight that is chosen on judged queries is measured on others."""

from __future__ import annotations

import pytest
import torch

from app.maths.relevance.fuse_weight import (
    choose_weight,
    default_weight,
    held_out_cosine,
    native_weight,
    trust_of,
)
from tests.maths.clouds import normal


def test_the_best_weight_wins_and_equal_means_take_the_smaller_one():
    values = torch.tensor([[0.2, 0.6, 0.6], [0.4, 0.3, 0.3]], dtype=torch.float64)
    assert choose_weight(values)[0] == 1
    assert choose_weight(torch.ones(6, 4, dtype=torch.float64))[0] == 0
    assert choose_weight(torch.ones(6, 4, dtype=torch.float64), usual=2)[0] == 2
    assert choose_weight(normal(1, 1, 3)) is None  # a single query leaves no other


def test_the_choice_for_a_query_never_sees_its_own_value():
    for n in (2, 3, 11, 40):
        values = normal(n, n, 5)
        chosen = choose_weight(values)[1]
        for query in range(n):
            changed = values.clone()
            changed[query] = normal(99, 5) * 1000
            assert choose_weight(changed)[1][query] == chosen[query]


def test_weights_follow_the_fidelity_and_the_difference_of_the_encoders_and_stop_somewhere():
    fidelities = (-1.0, 0.0, 0.2, 0.5, 0.7, 1.0)
    assert [default_weight(each) for each in fidelities] == [0, 0, 0.04, 0.23, 0.44, 0.9]
    differences = (-1.0, -0.1, -0.05, 0.0, 0.05, 0.1, 1.0)
    assert [default_weight(0.5, d) for d in differences] == [0, 0.21, 0.29, 0.38, 0.46, 0.54, 1]
    assert [native_weight(d) for d in differences] == [0.15, 0.15, 0.32, 0.5, 0.68, 0.85, 0.85]
    assert (default_weight(1.0, 1.0), native_weight(None)) == (1.0, 0.4)


def test_trust_makes_the_weight_of_native_scores_that_of_translated_ones():
    for translated, native in ((0.3, 0.5), (0.1, 0.85), (0.6, 0.8)):
        odds = trust_of(translated, native) * native / (1 - native)
        assert odds == pytest.approx(translated / (1 - translated))
    assert trust_of(0.8, 0.5) == trust_of(1.0, 0.5) == trust_of(0.2, 0.0) == trust_of(0.2, 1.0) == 1


def test_the_held_out_cosine_tells_good_anchors_from_shuffled_ones():
    x = normal(1, 200, 12) + 0.5
    y = 3.0 * x @ normal(2, 12, 9) - 1.0
    assert held_out_cosine(x.float(), y.float()) > 0.9
    assert abs(held_out_cosine(x.float(), y.roll(1, 0).float())) < 0.2
    assert held_out_cosine(x[:9], y[:9]) == 0.0
    assert 0 < held_out_cosine(x[:10], y[:10]) <= 1
