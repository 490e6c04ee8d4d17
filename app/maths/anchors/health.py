"""Defects of one encoder's anchors: rank, condition, and rows that add nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from app.maths.geometry.space import COSINE_ROWS, Space
from app.maths.geometry.spectrum import rank_and_ratio
from app.types import repeated_positions

#: Two anchors whose |cos| is above 1 minus this have one direction.
COLLINEAR_TOLERANCE = 1e-6

#: Rows that a list in the report names at most.
MOST_LISTED_ROWS = 20


@dataclass(frozen=True)
class Health:
    """The health of an anchor set.

    rank        of the unit anchors; at most min(k - 1, d) by centring
    condition   largest over smallest kept singular value
    at_mean     rows equal to the mean: they have no direction and add nothing
    duplicates  rows equal to an earlier row
    collinear   rows on the line of an earlier row through the mean, without the duplicates
    Lists are cut at MOST_LISTED_ROWS rows; the counts are complete.
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
    rank, condition = rank_and_ratio(space.spectrum.values)
    at_mean = (space.unit.abs().amax(dim=1) == 0).nonzero().flatten().tolist()
    _, groups = torch.unique(anchors, dim=0, return_inverse=True)
    duplicates = repeated_positions(groups.tolist())
    lines = sorted(set(_collinear_with_earlier(space.unit)) - set(duplicates))
    return Health(
        rank=rank,
        condition=condition,
        at_mean=at_mean[:MOST_LISTED_ROWS],
        at_mean_count=len(at_mean),
        duplicates=duplicates[:MOST_LISTED_ROWS],
        duplicate_count=len(duplicates),
        collinear=lines[:MOST_LISTED_ROWS],
        collinear_count=len(lines),
    )


def _collinear_with_earlier(unit: Float64[Tensor, "k d"]) -> list[int]:
    """Rows with |cos| to an earlier row above 1 - COLLINEAR_TOLERANCE."""
    rows = []
    for start in range(0, unit.shape[0], COSINE_ROWS):
        block = unit[start : start + COSINE_ROWS]
        cosines = (block @ unit[: start + block.shape[0]].T).abs()
        earlier = cosines.tril(diagonal=start - 1) > 1 - COLLINEAR_TOLERANCE
        rows += (earlier.any(dim=1).nonzero().flatten() + start).tolist()
    return rows
