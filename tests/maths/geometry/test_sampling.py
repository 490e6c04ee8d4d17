"""Random samples of a pool."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidOption
from app.maths.geometry.sampling import draw_uniformly

seeds = st.integers(0, 2**31)


@given(seed=seeds, pool=st.integers(1, 50), share=st.floats(0, 1))
def test_samples_have_size_distinct_indices_in_range_equal_for_equal_seeds(seed, pool, share):
    size = max(1, round(share * pool))
    found = draw_uniformly(pool, size=size, seed=seed)
    assert len(found) == len(set(found)) == size
    assert all(0 <= index < pool for index in found)
    assert found == draw_uniformly(pool, size=size, seed=seed)


@pytest.mark.parametrize("size", [-1, 0, 11])
def test_a_size_outside_one_to_the_pool_is_refused(size):
    with pytest.raises(InvalidOption) as caught:
        draw_uniformly(10, size=size, seed=0)
    assert caught.value.field == "size"
