"""Pools prepared in pieces, compared with a space fitted as a whole."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.errors import DegenerateAnchors, EmptyVectors, NonFinite
from app.maths.bootstrap import pools as common
from app.maths.bootstrap.pools import fit_pools
from app.maths.geometry.space import fit_space
from tests.maths.bootstrap.clouds import normal


@given(
    seed=st.integers(0, 2**31),
    n=st.integers(2, 40),
    d=st.integers(2, 9),
    piece=st.sampled_from([1, 20, 10**6]),
    power=st.sampled_from([0, 60, -60]),
    shift=st.sampled_from([0.0, 1.0, 1e4]),
)
def test_pools_are_the_unit_rows_of_their_spaces_however_small_the_pieces(
    seed, n, d, piece, power, shift
):
    raw = (normal(seed, n, d) + shift) * 2.0**power
    usual, common.NUMBERS_PER_PIECE = common.NUMBERS_PER_PIECE, piece
    try:
        pools = fit_pools(raw, raw.flip(0))
    finally:
        common.NUMBERS_PER_PIECE = usual
    expected = fit_space(raw).unit.float()
    assert torch.allclose(pools.x, expected, atol=1e-6)
    assert torch.allclose(pools.y, expected.flip(0), atol=1e-6)
    assert pools.x.dtype == torch.float32


def test_an_outlier_does_not_move_the_mean():
    raw = normal(1, 50, 6) + 3.0
    far = torch.cat([1e20 * raw[:1], raw[1:]])
    expected = fit_space(raw[1:]).unit.float()
    pools = fit_pools(far, far.flip(0))
    assert torch.allclose(pools.x[1:], expected, atol=1e-5)
    assert torch.allclose(pools.y[:-1].flip(0), expected, atol=1e-5)
    assert float(pools.x[0].norm()) == pytest.approx(1)


def test_where_most_items_are_zero_the_others_decide():
    raw = torch.cat([torch.zeros(30, 4), normal(2, 20, 4)])
    assert torch.allclose(fit_pools(raw, raw).x, fit_space(raw).unit.float(), atol=1e-6)


@pytest.mark.parametrize(
    ("bad", "error", "named"),
    [
        (torch.ones(5, 3), DegenerateAnchors, []),
        (torch.empty(0, 3), EmptyVectors, []),
        (torch.tensor([[1.0], [torch.nan]]), NonFinite, [1]),
    ],
)
@pytest.mark.parametrize("side", [0, 1])
def test_pools_that_span_nothing_or_hold_no_numbers_are_refused(bad, error, named, side):
    given_pools = [normal(0, 5, 3), bad] if side else [bad, normal(0, 5, 3)]
    with pytest.raises(error) as caught:
        fit_pools(*given_pools)
    assert list(caught.value.rows or []) == named
