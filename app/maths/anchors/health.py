"""Defects of one encoder's anchors: rank, condition, and rows that add nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from app.maths.geometry.space import COSINE_ROWS, Space
from app.maths.geometry.spectrum import rank_and_condition
from app.types import repeated_positions

#: Two anchors whose |cos| is above 1 minus this have one direction.
COLLINEAR_TOLERANCE = 1e-6

#: Rows that a list in the report names at most.
MAX_LISTED_ROWS = 20


def examine(anchors: Float64[Tensor, "k d"], space: Space) -> dict[str, Any]:
    """The health of raw anchors (k, d), the encoder's own units, and the space fitted to them.

    rank        of the unit anchors; at most min(k - 1, d) by centring
    condition   largest over smallest kept singular value
    at_mean     rows equal to the mean: they have no direction and add nothing
    duplicates  rows equal to an earlier row
    collinear   rows on the line of an earlier row through the mean, without the duplicates
    Lists are cut at MAX_LISTED_ROWS rows; the counts (`at_mean_count`, `duplicate_count`,
    `collinear_count`) are complete.
    """
    rank, condition = rank_and_condition(space.unit, noise=space.noise)
    at_mean = (space.unit.abs().amax(dim=1) == 0).nonzero().flatten().tolist()
    _, groups = torch.unique(anchors, dim=0, return_inverse=True)
    duplicates = repeated_positions(groups.tolist())
    listed = torch.ones(len(space.unit), dtype=torch.bool, device=space.unit.device)
    listed[at_mean + duplicates] = False
    collinear = _collinear_with_earlier(space.unit, _near_another(space.unit, listed))
    lists = {"at_mean": at_mean, "duplicates": duplicates, "collinear": collinear}
    return {
        "rank": rank,
        "condition": condition,
        **{name: rows[:MAX_LISTED_ROWS] for name, rows in lists.items()},
        **{f"{name.removesuffix('s')}_count": len(rows) for name, rows in lists.items()},
    }


def _near_another(unit: Float64[Tensor, "k d"], listed: Bool[Tensor, " k"]) -> Int64[Tensor, " m"]:
    """The listed rows that are near another listed row, or opposite to one: |cos| > 1 - t means
    |u -+ v| < sqrt(2 t). Few rows are, and a tree finds them without all cosines.
    """
    from scipy.spatial import cKDTree  # takes half a second, and few processes need it

    rows = listed.nonzero().flatten()
    points = unit[rows].cpu().numpy()
    tree = cKDTree(points)
    reach = 1.01 * (2 * COLLINEAR_TOLERANCE) ** 0.5
    same, _ = tree.query(points, k=[2], distance_upper_bound=reach)
    opposite, _ = tree.query(-points, k=[1], distance_upper_bound=reach)
    near = torch.from_numpy(np.minimum(same, opposite)[:, 0]).isfinite()
    return rows[near.to(rows.device)]


def _collinear_with_earlier(unit: Float64[Tensor, "k d"], rows: Int64[Tensor, " m"]) -> list[int]:
    """Those of the rows, in rising order, with |cos| to an earlier row above 1 -
    COLLINEAR_TOLERANCE.
    """
    found = []
    for start in range(0, len(rows), COSINE_ROWS):
        part = rows[start : start + COSINE_ROWS]
        count = int(part[-1]) + 1
        cosines = (unit[part] @ unit[:count].T).abs()
        earlier = torch.arange(count, device=unit.device) < part[:, None]
        found += part[((cosines > 1 - COLLINEAR_TOLERANCE) & earlier).any(dim=1)].tolist()
    return found
