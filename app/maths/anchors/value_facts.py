"""Properties of the numbers of raw anchors: rounding, lengths, and outlying rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float32
from torch import Tensor

from app.maths.geometry.robust import robust_scores
from app.maths.geometry.space import row_norms

ValuePrecision = Literal["float32", "half", "quantised"]

#: Lengths this near to 1 are those of normalised vectors, in half precision too.
UNIT_LENGTH_TOLERANCE = 2e-3

#: Rows whose robust score exceeds this are outliers: 9 of 30,750 real rows by 18 encoders.
OUTLIER_SCORE = 6.0

#: The least spread of lengths that counts, as a share of their median.
LEAST_RELATIVE_SPREAD = 1e-3

#: Fewer numbers may be round by chance; and the number of values that the search for repeated ones
#: reads.
FEWEST_NUMBERS, MOST_NUMBERS_READ = 2**12, 2**18

#: Different values of a byte.
BYTE_LEVELS = 256


class Outlier(NamedTuple):
    """An outlying row: its length, in the encoder's units, and the scores of its length and of its
    distance from the mean.
    """

    row: int
    length: float
    length_score: float
    distance_score: float


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
    """The rounding of the numbers before they were sent; float32 for fewer than FEWEST_NUMBERS
    numbers.
    """
    if anchors.numel() < FEWEST_NUMBERS:
        return "float32"
    if len(torch.unique(anchors.flatten()[:MOST_NUMBERS_READ])) <= BYTE_LEVELS:
        return "quantised"
    is_half = any(
        torch.equal(anchors.to(dtype).float(), anchors) for dtype in (torch.float16, torch.bfloat16)
    )
    return "half" if is_half else "float32"
