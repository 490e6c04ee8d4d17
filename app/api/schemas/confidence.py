"""How confidence is written: a column of numbers for each thing that is told of every row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pydantic import BaseModel, Field
from torch import Tensor

from app.services.translators.confidence import RowConfidence

#: Arrow's columns, by the names of JSON's
ARROW = {
    "cosine": "anchorage_cosine",
    "low": "anchorage_cosine_low",
    "high": "anchorage_cosine_high",
    "p_value": "anchorage_p_value",
}

#: digits after the point: of numbers that are never better known
DIGITS = 5


class Confidence(BaseModel):
    """Columns of one number for each row: the expected cosine to the target encoder's own vector, both centred on the target's
    anchors, an interval that holds it with probability `level` for items like the anchors, and the p-value of being like them.
    """

    level: float
    held_out: int = Field(description="anchors that this was learnt from; 0: too few")
    threshold: float | None = Field(
        description="rows with a p-value at or below it are flagged: so many of those like the anchors"
    )
    reason: str | None = Field(
        description="why there are no intervals, or nothing at all; null where there are"
    )
    cosine: list[float | None] = Field(
        description="null where the translation is the target's mean"
    )
    low: list[float | None]
    high: list[float | None]
    p_value: list[float | None] = Field(
        description="null where the vector equals the source's mean"
    )


def columns(told: RowConfidence) -> dict[str, Any]:
    """The fields of `Confidence`."""
    return {
        "level": told.level,
        "held_out": told.held_out,
        "threshold": told.threshold,
        "reason": told.reason,
        **{name: _numbers(getattr(told.expected, name)) for name in ARROW},
    }


def arrays(about: Mapping[str, Any]) -> dict[str, pa.Array]:
    """The same as columns of Arrow, null for null; none where confidence was not asked for."""
    told = about.get("confidence")
    return (
        {}
        if told is None
        else {column: pa.array(told[name], pa.float32()) for name, column in ARROW.items()}
    )


def summary(about: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of all rows together."""
    told = about.get("confidence")
    return (
        {}
        if told is None
        else {"confidence": {name: value for name, value in told.items() if name not in ARROW}}
    )


def _numbers(column: Tensor) -> list[float | None]:
    return [
        None if number != number else number
        for number in column.double().round(decimals=DIGITS).tolist()
    ]
