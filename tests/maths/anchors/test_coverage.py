"""What an anchor set covers, and which items would cover more."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from app.maths.anchors.coverage import (
    COVERAGE_RIDGE,
    cover,
    effective_ranks,
    nearest_cosines,
    uncovered_shares,
)
from app.maths.geometry import space
from tests.maths.clouds import unit_rows

seeds = st.integers(0, 2**31)
shapes = st.sampled_from([(6, 9), (9, 9), (20, 9), (30, 3)])


def unreached(unit: Tensor, rows: Tensor, ridge: float = COVERAGE_RIDGE) -> Tensor:
    """The module's definition, literally: r v^T (U^T U + r I)^-1 v."""
    inverse = torch.linalg.inv(unit.T @ unit + ridge * torch.eye(unit.shape[1], dtype=unit.dtype))
    return ridge * ((rows @ inverse) * rows).sum(dim=1)


# --- coverage -------------------------------------------------------------------------------------


@given(seed=seeds, shape=shapes, ridge=st.sampled_from([0.1, 1.0, 10.0]))
def test_each_anchor_left_out_in_closed_form_equals_a_fit_without_it(seed, shape, ridge):
    unit = unit_rows(seed, *shape)
    found = uncovered_shares(unit, ridge=ridge)
    for row in range(len(unit)):
        others = torch.cat([unit[:row], unit[row + 1 :]])
        assert float(found[row]) == pytest.approx(
            float(unreached(others, unit[row : row + 1], ridge)), abs=1e-9
        )
    assert bool(((found >= 0) & (found <= 1)).all())


def test_orthogonal_anchors_cover_nothing_of_each_other_and_their_effective_rank_is_their_number():
    found = cover(torch.eye(5, 8, dtype=torch.float64))
    assert (found.left_out, found.isolated, found.nearest) == (pytest.approx(0), 5, 0)
    assert (found.effective_rank, found.participation) == (pytest.approx(5), pytest.approx(5))


def test_effective_ranks_are_those_of_the_singular_values():
    unit = unit_rows(3, 40, 7) * torch.tensor([1.0, 1, 1, 5, 5, 0.1, 0.01])
    squares = torch.linalg.svdvals(unit).square()
    shares = squares / squares.sum()
    assert effective_ranks(unit) == pytest.approx(
        (math.exp(-float((shares * shares.log()).sum())), 1 / float(shares.square().sum()))
    )


def test_anchors_at_the_mean_do_not_count():
    unit = unit_rows(4, 10, 5)
    assert cover(torch.cat([unit, torch.zeros(3, 5, dtype=torch.float64)])) == cover(unit)


@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_nearest_cosines_leave_the_row_itself_out_whatever_the_chunk(monkeypatch, chunk):
    monkeypatch.setattr(space, "COSINE_ROWS", chunk)
    unit = torch.tensor([[1.0, 0], [0, 1], [0.6, 0.8], [-1, 0]], dtype=torch.float64)
    assert nearest_cosines(unit).tolist() == pytest.approx([0.6, 0.8, 0.8, 0.0])
    assert nearest_cosines(unit[:1]).tolist() == [-1.0]
