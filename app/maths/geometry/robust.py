"""Robust scores: how far values lie from their median."""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor

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
