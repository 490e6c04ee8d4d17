"""Defects of one encoder's anchors: rank, condition, and rows that add nothing."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from app.maths.geometry.space import Space
from app.maths.geometry.spectrum import rank_and_condition
from app.types import repeated_positions

#: Rows that a list in the report names at most.
MAX_LISTED_ROWS = 20


def examine(anchors: Float64[Tensor, "k d"], space: Space) -> dict[str, Any]:
    """The health of raw anchors (k, d), the encoder's own units, and the space fitted to them.

    rank        of the unit anchors; at most min(k - 1, d) by centring
    condition   largest over smallest kept singular value
    at_mean     rows equal to the mean: they have no direction and add nothing
    duplicates  rows equal to an earlier row
    Lists are cut at MAX_LISTED_ROWS rows; the counts (`at_mean_count`, `duplicate_count`) are
    complete.
    """
    rank, condition = rank_and_condition(space.unit, noise=space.noise)
    at_mean = (space.unit.abs().amax(dim=1) == 0).nonzero().flatten().tolist()
    _, groups = torch.unique(anchors, dim=0, return_inverse=True)
    duplicates = repeated_positions(groups.tolist())
    return {
        "rank": rank,
        "condition": condition,
        "at_mean": at_mean[:MAX_LISTED_ROWS],
        "at_mean_count": len(at_mean),
        "duplicates": duplicates[:MAX_LISTED_ROWS],
        "duplicate_count": len(duplicates),
    }
