"""The least quality that a request accepts from a translator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.anchors import made_pairs
from app.db import tables
from app.errors import QualityBelowMinimum
from app.translate import estimate as translator_reports


def require_estimate(
    row: tables.TranslatorRow,
    minimum: Mapping[str, float],
    index: int | None = None,
) -> None:
    """Raises QualityBelowMinimum unless the report's estimate reaches the minimum of each measure.

    The estimate is for an index of that many items; None: the report's own index.
    """
    if not minimum:
        return
    estimated = translator_reports.estimate_for(row.report or {}, index)
    for measure, least in minimum.items():
        reason = _shortfall(row, estimated, measure, least)
        if reason is not None:
            pair = f"{row.source.encoder.name} -> {row.target.encoder.name}"
            raise QualityBelowMinimum(
                f"{pair} at {row.source.anchor_set.name}: {measure} must be at least "
                f"{least}, and {reason}",
                field="min_quality",
                found=estimated,
            )


def _shortfall(
    row: tables.TranslatorRow,
    estimated: Mapping[str, Any] | None,
    measure: str,
    least: float,
) -> str | None:
    """Why a minimum is not reached, and what to do; None if it is."""
    if (row.report or {}).get("alignment"):
        return f"{made_pairs.NOT_MEASURED}; or drop the minimum."
    if estimated is None:
        return (
            "there are too few distinct anchors to estimate any quality. Add anchors, or lower the "
            "minimum."
        )
    found = estimated["measures"][measure]
    if found["value"] >= least:
        return None
    return (
        f"{row.method} estimates {found['value']:.3f} (95 %: {found['low']:.3f} to "
        f"{found['high']:.3f}) in an index of {estimated['index']:,} items. Add anchors, lower the "
        "minimum, or name the `index` that you have."
    )
