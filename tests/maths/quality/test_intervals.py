"""Bootstrap intervals have their coverage, and are reproducible."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.maths.quality.metrics import bootstrap_interval
from tests.maths.clouds import normal

seeds = st.integers(0, 2**31)

#: the tests' worlds: how to draw n values, and their true mean
WORLDS = {
    "normal": (lambda n, generator: torch.randn(n, generator=generator, dtype=torch.float64), 0.0),
    "uniform": (lambda n, generator: torch.rand(n, generator=generator, dtype=torch.float64), 0.5),
    "hits": (lambda n, generator: (torch.rand(n, generator=generator) < 0.3).double(), 0.3),
}


@pytest.mark.parametrize("n", [12, 100])
@pytest.mark.parametrize("world", WORLDS)
def test_ninety_five_of_a_hundred_intervals_hold_the_true_mean(world, n):
    """1,500 draws: the standard error of the coverage is .006, and hits come in steps."""
    draw, truth = WORLDS[world]
    generator = torch.Generator().manual_seed(n)
    values = torch.stack([draw(n, generator) for _ in range(1_500)], dim=1)
    low, high = bootstrap_interval(values)
    covered = float(((low <= truth) & (truth <= high)).double().mean())
    assert 0.93 <= covered <= 0.97


@given(seed=seeds, n=st.integers(1, 40))
def test_an_interval_holds_the_mean_lies_in_the_range_and_is_the_same_each_time(seed, n):
    values = normal(seed, n)
    low, high = bootstrap_interval(values)
    assert values.min() <= low <= high <= values.max()
    assert (low, high) == bootstrap_interval(values)
    if n >= 5:
        assert low <= values.mean() <= high


@pytest.mark.parametrize("n", [1, 9])
@pytest.mark.parametrize("value", [1 / 3, -7e20])
def test_equal_values_have_an_interval_of_no_width_to_the_bit(n, value):
    low, high = bootstrap_interval(torch.full((n,), value, dtype=torch.float64))
    assert float(low) == float(high) == value
