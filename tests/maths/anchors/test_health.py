"""The report on a space names the rows that add nothing."""

from __future__ import annotations

import torch

from app.maths.anchors.health import MAX_LISTED_ROWS, examine
from app.maths.geometry.space import fit_space
from tests.maths.clouds import normal


def test_rows_that_add_nothing_are_named():
    half = normal(8, 4, 6)
    anchors = torch.cat([half, torch.zeros(1, 6, dtype=torch.float64), -half])
    anchors = torch.cat([anchors, anchors[[2, 7, 2, 7]]])
    found = examine(anchors, fit_space(anchors))
    assert (found["at_mean"], found["at_mean_count"]) == ([4], 1)
    assert (found["duplicates"], found["duplicate_count"]) == ([9, 10, 11, 12], 4)
    assert found["rank"] == 4
    copies = normal(9, 5, 3).repeat(10, 1)
    found = examine(copies, fit_space(copies))
    assert found["duplicates"] == list(range(5, 5 + MAX_LISTED_ROWS))
    assert found["duplicate_count"] == 45
