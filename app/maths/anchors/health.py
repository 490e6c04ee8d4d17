"""Defects of one encoder's anchors: rank, condition, and rows that add nothing."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class Health:
    """The health of an anchor set.

    rank        of the unit anchors; at most min(k - 1, d) by centring
    condition   largest over smallest kept singular value
    at_mean     rows equal to the mean: they have no direction and add nothing
    duplicates  rows equal to an earlier row
    collinear   rows on the line of an earlier row through the mean, without the duplicates
    Lists are cut at MAX_LISTED_ROWS rows; the counts are complete.
    """

    rank: int
    condition: float
    at_mean: list[int]
    at_mean_count: int
    duplicates: list[int]
    duplicate_count: int
    collinear: list[int]
    collinear_count: int


def examine(anchors: Float64[Tensor, "k d"], space: Space) -> Health:
    """Health of raw anchors (k, d), the encoder's own units, and the space fitted to them."""
    rank, condition = rank_and_condition(space.unit, noise=space.noise)
    at_mean = (space.unit.abs().amax(dim=1) == 0).nonzero().flatten().tolist()
    _, groups = torch.unique(anchors, dim=0, return_inverse=True)
    duplicates = repeated_positions(groups.tolist())
    listed = torch.ones(len(space.unit), dtype=torch.bool, device=space.unit.device)
    listed[at_mean + duplicates] = False
    lines = _collinear_with_earlier(space.unit, _near_another(space.unit, listed))
    return Health(
        rank=rank,
        condition=condition,
        at_mean=at_mean[:MAX_LISTED_ROWS],
        at_mean_count=len(at_mean),
        duplicates=duplicates[:MAX_LISTED_ROWS],
        duplicate_count=len(duplicates),
        collinear=lines[:MAX_LISTED_ROWS],
        collinear_count=len(lines),
    )


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
