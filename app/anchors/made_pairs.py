"""Anchor sets whose pairs were made by an alignment, not known: what may be said about them.

A made pair is an item of the source's pool and the place in the target's space where the alignment
puts it. Cross-validation on such pairs measures the alignment with itself, so everything that is
usually measured on anchors is the stored estimate of the alignment instead, or nothing.
"""

from __future__ import annotations

from typing import Any

from app.db import tables
from app.maths.translators import methods

#: The `method` in the provenance of such a set.
ALIGNMENT = "alignment"
#: What `method: auto` fits to made pairs. The decode power favours the nearest item, which the
#: estimate is about.
MADE_METHOD = "graded"
MADE_OPTIONS: methods.Options = {"decode_power": 0.5}
#: The same where seeds took part: the pairs are rows of one map, which the regression restores.
SEEDED_METHOD = "ridge"
#: Why a number is missing.
NOT_MEASURED = (
    "the pairs of this anchor set were made by an alignment, and cannot measure it. Send items "
    "that both encoders embedded to POST /evaluate"
)


def estimate_of(anchor_set: tables.AnchorSetRow) -> dict[str, Any] | None:
    """Return the stored estimate of the alignment that made the pairs; None for known pairs."""
    provenance = anchor_set.provenance or {}
    if provenance.get("method") != ALIGNMENT:
        return None
    estimate: dict[str, Any] = provenance["estimate"]
    return estimate


def made_method(
    shape: methods.Options, *, anchors: int, seeds: int = 0
) -> tuple[str, methods.Options]:
    """Return what `method: auto` means for made pairs, with options of every method."""
    if seeds:
        return SEEDED_METHOD, methods.resolve(SEEDED_METHOD, shape, anchors=anchors)
    return MADE_METHOD, methods.resolve(MADE_METHOD, {**MADE_OPTIONS, **shape}, anchors=anchors)
