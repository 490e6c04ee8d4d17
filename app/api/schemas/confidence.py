"""Confidence in each row of a translation: one column for each number."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field
from torch import Tensor

from app.services.serving.confidence import ARROW_COLUMNS, RowConfidence

#: Digits after the decimal point. The estimates are never more precise.
DECIMALS = 5


class ConfidenceOut(BaseModel):
    """Expected quality of each row. Every list has one number for each row.

    Cosines are to the target encoder's own vector, both centred on the target's anchors' mean.
    """

    level: float = Field(
        description="Probability that an interval holds the cosine, for items like the anchors."
    )
    held_out: int = Field(
        description="Number of held-out anchors behind the estimates; 0 if there are too few."
    )
    threshold: float | None = Field(
        description="Rows with a p-value at or below it are flagged `out-of-distribution`. "
        "It is also the share of rows like the anchors that are flagged."
    )
    reason: str | None = Field(
        description="Why the intervals, or all numbers, are missing. Null if none are."
    )
    cosine: list[float | None] = Field(
        description="Expected cosine, -1 to 1. Null if the translation is the target's mean."
    )
    low: list[float | None] = Field(description="Lower end of the interval.")
    high: list[float | None] = Field(description="Upper end of the interval.")
    p_value: list[float | None] = Field(
        description="p-value of the hypothesis that the vector is like the anchors, 0 to 1. "
        "Null if the vector equals the source's mean."
    )


def confidence_members(confidence: RowConfidence) -> dict[str, Any]:
    """The members of `ConfidenceOut`."""
    return {
        "level": confidence.level,
        "held_out": confidence.held_out,
        "threshold": confidence.threshold,
        "reason": confidence.reason,
        **{name: _numbers(getattr(confidence.expected, name)) for name in ARROW_COLUMNS},
    }


def _numbers(column: Tensor) -> list[float | None]:
    """The numbers, rounded, with None for NaN."""
    return [
        None if number != number else number
        for number in column.double().round(decimals=DECIMALS).tolist()
    ]
