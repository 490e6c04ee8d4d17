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
    new_items,
    suggest,
    uncovered_shares,
)
from app.maths.geometry import space
from tests.maths.clouds import normal, unit_rows

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


# --- suggestions ----------------------------------------------------------------------------------


def naive(unit: Tensor, pool: Tensor, count: int, open_: Tensor) -> list[int]:
    """Greedy by trying every item: which of them leaves the pool the least unreached?"""
    chosen: list[int] = []
    for _ in range(count):
        candidates = [row for row in range(len(pool)) if bool(open_[row]) and row not in chosen]
        if not candidates:
            break
        left = [
            float(unreached(torch.cat([unit, pool[[*chosen, row]]]), pool).sum())
            for row in candidates
        ]
        chosen.append(candidates[left.index(min(left))])
    return chosen


@given(seed=seeds, shape=st.sampled_from([(4, 15, 6), (20, 12, 6), (3, 4, 30), (1, 10, 10)]))
def test_fast_updates_choose_the_same_items_as_trying_each(seed, shape):
    k, n, d = shape
    unit, pool = unit_rows(seed, k, d), unit_rows(seed + 1, n, d)
    open_ = torch.rand(n, generator=torch.Generator().manual_seed(seed)) > 0.2
    found = suggest(unit, pool, count=6, open_=open_)
    assert found.rows == naive(unit, pool, 6, open_)[: len(found.rows)]
    assert len(found.rows) == min(6, int(open_.sum()))


@given(seed=seeds)
def test_gains_are_the_coverage_that_the_items_add(seed):
    unit, pool = unit_rows(seed, 5, 8), unit_rows(seed + 1, 40, 8)
    found = suggest(unit, pool, count=10)
    assert found.before == pytest.approx(1 - float(unreached(unit, pool).mean()))
    for done in range(11):
        reached = 1 - float(unreached(torch.cat([unit, pool[found.rows[:done]]]), pool).mean())
        assert found.before + sum(found.gains[:done]) == pytest.approx(reached)
    assert found.after == pytest.approx(found.before + sum(found.gains))
    assert min(found.gains) > 0


def test_the_whole_pool_may_be_asked_for_and_rows_that_may_not_be_chosen_never_are():
    unit, pool = unit_rows(8, 5, 4), unit_rows(9, 10, 4)
    assert sorted(suggest(unit, pool, count=99).rows) == list(range(10))
    assert suggest(unit, pool, count=5, open_=torch.zeros(10, dtype=torch.bool)).rows == []


def test_items_without_a_direction_are_not_suggested_and_do_not_count():
    unit, pool = unit_rows(10, 5, 4), unit_rows(11, 10, 4)
    more = torch.cat([torch.zeros(2, 4, dtype=torch.float64), pool])
    found, without = suggest(unit, more, count=20), suggest(unit, pool, count=20)
    assert found.rows == [row + 2 for row in without.rows]
    assert (found.before, found.after) == (
        pytest.approx(without.before),
        pytest.approx(without.after),
    )
    nothing = suggest(unit, torch.zeros(3, 4, dtype=torch.float64), count=3)
    assert (nothing.rows, nothing.before) == ([], 1.0)


def test_new_items_are_neither_anchors_nor_repeated():
    anchors, pool = normal(12, 3, 4).float(), normal(13, 4, 4).float()
    pool = torch.cat([pool, anchors[1:2], pool[2:3]])
    assert new_items(anchors, pool).tolist() == [True, True, True, True, False, False]


def test_a_wide_pool_is_reduced_to_its_span_and_nothing_changes():
    unit, pool = unit_rows(14, 4, 6), unit_rows(15, 9, 6)
    embedding, _ = torch.linalg.qr(normal(16, 200, 6))
    narrow, wide = (
        suggest(unit, pool, count=5),
        suggest(unit @ embedding.T, pool @ embedding.T, count=5),
    )
    assert wide.rows == narrow.rows
    assert wide.gains == pytest.approx(narrow.gains)
