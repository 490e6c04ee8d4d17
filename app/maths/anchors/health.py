"""Defects of one encoder's anchors: rank, condition, and rows that add nothing.

Properties of the numbers of raw anchors: rounding, lengths, and outlying rows.

Robust scores: how far values lie from their median.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor

from app.maths.geometry.space import COSINE_ROWS, Space, row_norms
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


ValuePrecision = Literal["float32", "half", "quantised"]

#: Lengths this near to 1 are those of normalised vectors, in half precision too.
UNIT_LENGTH_TOLERANCE = 2e-3

#: Rows whose robust score exceeds this are outliers: 9 of 30,750 real rows by 18 encoders.
OUTLIER_SCORE = 6.0

#: The least spread of lengths that counts, as a share of their median.
LEAST_RELATIVE_SPREAD = 1e-3

#: Fewer numbers may be round by chance; and the number of values that the search for repeated ones
#: reads.
FEWEST_NUMBERS, MAX_NUMBERS_READ = 2**12, 2**18

#: Different values of a byte.
BYTE_LEVELS = 256


class Outlier(NamedTuple):
    """An outlying row, and its length in the encoder's units."""

    row: int
    length: float


@dataclass(frozen=True)
class ValueFacts:
    """Properties of raw anchors.

    precision   half: every number is one of float16 or of bfloat16; quantised: there are at most
                BYTE_LEVELS different numbers
    normalised  whether every row has length 1
    length      the median |a_i|, in the encoder's units
    outliers    the rows whose |a_i| or |a_i - m| is outlying, the worst first
    """

    precision: ValuePrecision
    normalised: bool
    length: float
    outliers: list[Outlier]


def describe_values(anchors: Float32[Tensor, "k d"]) -> ValueFacts:
    """The properties of raw anchors (k, d), in the encoder's own units."""
    lengths = row_norms(anchors)
    distances = row_norms(anchors.double() - anchors.double().mean(dim=0))
    length_scores, distance_scores = (
        robust_scores(each, least=LEAST_RELATIVE_SPREAD * float(each.median()))
        for each in (lengths, distances)
    )
    worst = torch.maximum(length_scores.abs(), distance_scores.abs())
    rows = (worst > OUTLIER_SCORE).nonzero().flatten()
    rows = rows[worst[rows].argsort(descending=True, stable=True)]
    return ValueFacts(
        precision=value_precision(anchors),
        normalised=bool(((lengths - 1.0).abs() <= UNIT_LENGTH_TOLERANCE).all()),
        length=float(lengths.median()),
        outliers=[Outlier(row, float(lengths[row])) for row in rows.tolist()],
    )


def value_precision(anchors: Float32[Tensor, "k d"]) -> ValuePrecision:
    """The rounding of the numbers before they were sent; float32 for fewer than FEWEST_NUMBERS
    numbers.
    """
    if anchors.numel() < FEWEST_NUMBERS:
        return "float32"
    if len(torch.unique(anchors.flatten()[:MAX_NUMBERS_READ])) <= BYTE_LEVELS:
        return "quantised"
    is_half = any(
        torch.equal(anchors.to(dtype).float(), anchors) for dtype in (torch.float16, torch.bfloat16)
    )
    return "half" if is_half else "float32"


#: Scales a median absolute deviation to the standard deviation of a normal distribution.
NORMAL_CONSISTENCY = 1.4826

#: The largest score, also where all other values are equal.
LARGEST_SCORE = 1e6


def robust_scores(values: Float64[Tensor, " k"], *, least: float) -> Float64[Tensor, " k"]:
    """(value - median) / max(NORMAL_CONSISTENCY * median absolute deviation, least), for each value
    (k,).

    least  >= 0, in the values' unit; smaller spreads count as this one
    Returns (k,), dimensionless, in [-LARGEST_SCORE, LARGEST_SCORE]. Source: Rousseeuw and Hubert
    2011.
    """
    deviations = values - values.median()
    spread = (NORMAL_CONSISTENCY * deviations.abs().median()).clamp_min(
        max(least, torch.finfo(torch.float64).tiny)
    )
    return (deviations / spread).clamp(-LARGEST_SCORE, LARGEST_SCORE)
