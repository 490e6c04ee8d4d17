"""The report on a space names the rows that add nothing."""

from __future__ import annotations

import pytest
import torch

from app.maths.anchors.health import COLLINEAR_TOLERANCE, MAX_LISTED_ROWS, examine
from app.maths.geometry.space import fit_space
from tests.maths.clouds import normal


def test_a_row_equal_to_an_earlier_one_is_a_duplicate_and_not_listed_as_collinear_too():
    anchors = normal(3, 10, 6)
    anchors[7] = anchors[2]
    anchors[9] = anchors[2]
    found = examine(anchors, fit_space(anchors))
    assert (found["duplicates"], found["duplicate_count"]) == ([7, 9], 2)
    assert (found["collinear"], found["collinear_count"]) == ([], 0)


def test_rows_on_one_line_through_the_mean_are_collinear_antipodal_ones_included():
    half = normal(4, 4, 6)
    anchors = torch.cat([half, -half, 3 * half[:1], -3 * half[:1]])
    found = examine(anchors, fit_space(anchors))
    assert (found["collinear"], found["collinear_count"]) == ([4, 5, 6, 7, 8, 9], 6)
    assert found["duplicates"] == []
    assert found["rank"] == 4


def test_a_row_equal_to_the_mean_is_named_and_is_not_collinear():
    half = normal(8, 4, 6)
    anchors = torch.cat([half, torch.zeros(1, 6, dtype=torch.float64), -half])
    found = examine(anchors, fit_space(anchors))
    assert (found["at_mean"], found["at_mean_count"]) == ([4], 1)
    assert 4 not in found["collinear"]


def test_lists_are_cut_and_counts_are_whole():
    anchors = normal(9, 5, 3).repeat(10, 1)
    found = examine(anchors, fit_space(anchors))
    assert found["duplicates"] == list(range(5, 5 + MAX_LISTED_ROWS))
    assert found["duplicate_count"] == 45


def collinear_rows(unit: torch.Tensor) -> list[int]:
    """By the definition: every cosine in float64."""
    cosines = (unit @ unit.T).abs().tril(diagonal=-1)
    return (cosines > 1 - COLLINEAR_TOLERANCE).any(dim=1).nonzero().flatten().tolist()


@pytest.mark.parametrize("falling", [1.0, 0.9, 0.01], ids=["even", "falling", "one direction"])
def test_no_line_is_lost(falling):
    """Rows just within the tolerance and just beyond it, of clouds of several shapes."""
    scales = falling ** torch.arange(40, dtype=torch.float64)
    rows = normal(11, 300, 40)
    turned = rows + normal(12, 300, 40) * torch.linspace(0, 3e-3, 300)[:, None]
    half = torch.cat([rows, 1.7 * turned]) * scales
    anchors = torch.cat([half, -half])  # their mean is zero
    space = fit_space(anchors)
    expected = collinear_rows(space.unit)
    assert 600 < len(expected) < len(anchors)
    found = examine(anchors, space)
    assert found["duplicates"] == []
    assert found["collinear_count"] == len(expected)
    assert found["collinear"] == expected[:MAX_LISTED_ROWS]
