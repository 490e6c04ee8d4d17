"""Mismatched rows are found, and matching rows are not named."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from app.demo.pack import load_pack
from app.maths.anchors import mismatch
from app.maths.anchors.health import robust_scores
from app.maths.anchors.mismatch import (
    RELATED_Z,
    compare_anchors,
    leave_one_out_predictions,
    permutation_score,
    ridge_predictions,
)
from app.maths.quality.crossfit import FEWEST_DISTINCT
from app.maths.quality.metrics import cka
from tests.maths.clouds import normal, unit_rows

seeds = st.integers(0, 2**31)
PACK = load_pack()
PAIRS = list(combinations(sorted(PACK.vectors), 2))


def real(
    first: str, second: str, *, size: int = 300, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Vectors of `size` sentences by two real encoders, and the sentences' intents."""
    rows = torch.randperm(len(PACK.labels), generator=torch.Generator().manual_seed(seed))[:size]
    return PACK.vectors[first][rows], PACK.vectors[second][rows], PACK.labels[rows]


def five_of_other_intents(labels: Tensor, seed: int) -> Tensor:
    """Rows whose intent differs from the next one's: exchanging two ways of saying one thing is no
    mistake.
    """
    generator = torch.Generator().manual_seed(seed)
    while True:
        rows = torch.randperm(len(labels), generator=generator)[:5]
        if len(set(labels[rows].tolist())) == 5:
            return rows


# --- the algebra ----------------------------------------------------------------------------------


@given(seed=seeds, shape=st.sampled_from([(6, 9, 4), (9, 9, 9), (25, 9, 4), (25, 3, 12)]))
def test_rows_left_out_in_closed_form_equal_fits_without_them(seed, shape):
    k, dx, dy = shape
    x, y = unit_rows(seed, k, dx), unit_rows(seed + 1, k, dy)
    found = leave_one_out_predictions(x, y)
    for row in range(k):
        others = torch.arange(k) != row
        assert torch.allclose(
            found[row : row + 1],
            ridge_predictions(x[others], y[others], x[row : row + 1]),
            atol=1e-10,
        )


@given(seed=seeds, shape=st.sampled_from([(5, 12), (30, 7)]))
def test_regression_is_the_same_from_either_side(seed, shape):
    x, y, queries = (
        unit_rows(seed, *shape),
        unit_rows(seed + 1, shape[0], 4),
        unit_rows(seed + 2, 3, shape[1]),
    )
    inverse = torch.linalg.inv(x.T @ x + torch.eye(shape[1], dtype=x.dtype))
    assert torch.allclose(ridge_predictions(x, y, queries), queries @ inverse @ x.T @ y)


def test_the_score_is_the_sum_over_its_spread_under_all_permutations():
    from itertools import permutations

    for dim in (3, 9):
        p, y = normal(1, 6, dim), normal(2, 6, dim)
        sums = torch.stack([(p * y[list(order)]).sum() for order in permutations(range(6))])
        expected = ((p * y).sum() - sums.mean()) / sums.std(correction=0)
        assert permutation_score(p, y) == pytest.approx(float(expected))


@given(seed=seeds)
def test_the_comparison_is_symmetric_and_does_not_see_rotations_scales_or_shifts(seed):
    x, y = normal(seed, 30, 5), normal(seed + 1, 30, 4)
    y = y + x[:, :4]
    rotation, _ = torch.linalg.qr(normal(seed + 2, 5, 5))
    one, other, turned = (
        compare_anchors(x, y),
        compare_anchors(y, x),
        compare_anchors(7 * x @ rotation + 3, y),
    )
    assert one.agreement == pytest.approx(other.agreement)
    assert one.z == pytest.approx(other.z)
    assert one.agreement == pytest.approx(turned.agreement)
    assert (
        {each.row for each in one.suspects}
        == {each.row for each in other.suspects}
        == {each.row for each in turned.suspects}
    )


def test_robust_scores_of_equal_values_are_zero_and_bounded():
    assert robust_scores(torch.ones(9, dtype=torch.float64), least=0.0).tolist() == [0.0] * 9
    values = torch.zeros(9, dtype=torch.float64)
    values[3] = 1e30
    assert robust_scores(values, least=0.0).tolist() == [0.0] * 3 + [1e6] + [0.0] * 5


# --- real encoders --------------------------------------------------------------------------------


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("seed", range(3))
def test_five_exchanged_rows_of_three_hundred_are_found_with_their_partners(pair, seed):
    x, y, labels = real(*pair, seed=seed)
    rows = five_of_other_intents(labels, seed)
    y = y.clone()
    y[rows] = y[rows.roll(1)]
    found = compare_anchors(x, y)
    assert found.verdict == "related"
    assert set(rows.tolist()) <= {each.row for each in found.suspects}
    assert len(found.suspects) <= 5 + 3
    partners = dict(zip(rows.tolist(), rows.roll(-1).tolist(), strict=True))
    right = sum(each.fits == partners.get(each.row) for each in found.suspects)
    assert right >= 4


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_a_permuted_side_is_unrelated_and_has_no_suspects(pair):
    x, y, _ = real(*pair)
    found = compare_anchors(x, y[torch.randperm(300, generator=torch.Generator().manual_seed(1))])
    assert (found.verdict, found.suspects) == ("unrelated", [])
    assert abs(found.z) < RELATED_Z
    assert found.cka == pytest.approx(0, abs=0.02)
    assert compare_anchors(x, y).cka == pytest.approx(cka(x, y))
    assert cka(x, y) > 0.7


@pytest.mark.parametrize("offset", [1, -1])
def test_a_whole_side_that_is_shifted_by_one_is_unrelated_with_its_shift(offset):
    x, y, _ = real("minilm6-384", "static-256", size=80)
    found = compare_anchors(x, y.roll(offset, dims=0))
    assert (found.verdict, found.shift) == ("unrelated", offset)
    assert compare_anchors(x, y.roll(5, dims=0)).shift == 0


# --- few and delicate rows ------------------------------------------------------------------------


def test_few_rows_are_unclear_and_have_no_suspects():
    x, y, _ = real("minilm6-384", "static-256", size=mismatch.FEWEST_FOR_SUSPECTS - 1)
    assert compare_anchors(x, y.flip(0)).suspects == []
    few = compare_anchors(x[: FEWEST_DISTINCT - 1], y[: FEWEST_DISTINCT - 1])
    assert (few.verdict, few.z, few.agreement, few.suspects) == ("unclear", None, None, [])
    assert compare_anchors(x[:12], y[:12].flip(0)).verdict == "unclear"
    assert compare_anchors(x[:3], y[:3]).cka is None


def test_rows_at_the_mean_are_not_judged_and_the_others_keep_their_numbers():
    x = normal(5, 100, 20)
    y = x @ normal(6, 20, 15)
    x, y = (
        torch.cat([torch.zeros(1, 20), x, -x]).double(),
        torch.cat([torch.zeros(1, 15), y, -y]).double(),
    )
    y[[11, 21]] = y[[21, 11]]
    found = compare_anchors(x, y)
    assert {each.row for each in found.suspects} == {11, 21}
    assert {each.row: each.fits for each in found.suspects} == {11: 21, 21: 11}


def test_a_side_of_one_repeated_vector_is_unclear_and_no_error():
    found = compare_anchors(torch.ones(50, 4), normal(7, 50, 3))
    assert (found.verdict, found.z, found.cka, found.suspects) == ("unclear", None, None, [])
