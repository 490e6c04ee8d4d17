"""What the numbers of raw anchors look like: how they are rounded, how long the rows are, and which rows stand out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float32, Float64
from torch import Tensor

from app.maths.geometry.space import row_norms

ValuePrecision = Literal["float32", "half", "quantised"]

#: lengths that are 1 up to this are those of normalised vectors, in half precision too
UNIT_LENGTH_TOLERANCE = 2e-3

#: robust standard deviations from which on a row stands out. 9 of 30,750 real rows by 18 encoders do
OUTLIER_SCORE = 6.0

#: lengths that differ by less than this share of the median are not told apart
LEAST_RELATIVE_SPREAD = 1e-3

#: scales a median absolute deviation to the standard deviation of a normal distribution
NORMAL_CONSISTENCY = 1.4826

#: the largest score there is: where all other rows are equal, any difference is beyond measure
LARGEST_SCORE = 1e6

#: fewer numbers than this may be round by chance; and how many are looked at for repeated ones
FEWEST_NUMBERS, MOST_NUMBERS_READ = 2**12, 2**18

#: values that a byte can have
BYTE_LEVELS = 256


class Outlier(NamedTuple):
    """A row that stands out: its length, in the encoder's units, and the scores of that and of its distance from the mean."""

    row: int
    length: float
    length_score: float
    distance_score: float


@dataclass(frozen=True)
class ValueFacts:
    """precision   half: every number is one of float16 or of bfloat16; quantised: they are at most LEVELS different ones
    normalised  whether every row has length 1
    length      the median |a_i|, in the encoder's units
    outliers    the rows whose |a_i| or |a_i - m| stands out, the worst first
    """

    precision: ValuePrecision
    normalised: bool
    length: float
    outliers: list[Outlier]


def describe_values(anchors: Float32[Tensor, "k d"]) -> ValueFacts:
    """What raw anchors (k, d), the encoder's own units, look like."""
    lengths = row_norms(anchors)
    distances = row_norms(anchors.double() - anchors.double().mean(dim=0))
    length_scores, distance_scores = (
        robust_scores(each, least=LEAST_RELATIVE_SPREAD * float(each.median()))
        for each in (lengths, distances)
    )
    worst = torch.maximum(length_scores.abs(), distance_scores.abs())
    rows = (worst > OUTLIER_SCORE).nonzero().flatten()
    rows = rows[worst[rows].argsort(descending=True, stable=True)]
    columns = (rows, lengths[rows], length_scores[rows], distance_scores[rows])
    return ValueFacts(
        precision=value_precision(anchors),
        normalised=bool(((lengths - 1.0).abs() <= UNIT_LENGTH_TOLERANCE).all()),
        length=float(lengths.median()),
        outliers=[
            Outlier(*row) for row in zip(*(column.tolist() for column in columns), strict=True)
        ],
    )


def value_precision(anchors: Float32[Tensor, "k d"]) -> ValuePrecision:
    """How the numbers were rounded before they came here; float32 for fewer than TELLING numbers."""
    if anchors.numel() < FEWEST_NUMBERS:
        return "float32"
    if len(torch.unique(anchors.flatten()[:MOST_NUMBERS_READ])) <= BYTE_LEVELS:
        return "quantised"
    is_half = any(
        torch.equal(anchors.to(dtype).float(), anchors) for dtype in (torch.float16, torch.bfloat16)
    )
    return "half" if is_half else "float32"


def robust_scores(values: Float64[Tensor, " k"], *, least: float) -> Float64[Tensor, " k"]:
    """(value - median) / (CONSISTENT * median absolute deviation) of each, that spread being no smaller than `least` >= 0.

    In [-LARGEST_SCORE, LARGEST_SCORE]. Source: Rousseeuw and Hubert 2011.
    """
    apart = values - values.median()
    spread = (NORMAL_CONSISTENCY * apart.abs().median()).clamp_min(
        max(least, torch.finfo(torch.float64).tiny)
    )
    return (apart / spread).clamp(-LARGEST_SCORE, LARGEST_SCORE)
