"""Which registered encoder the vectors of a store look like, by their anchors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from app.anchors.spaces import comparable_anchors
from app.context import Services
from app.db import tables
from app.maths.anchors.space_match import LEAST_SHARE, UNUSUAL_SHARE, SpaceMatch, match_space

#: ids of foreign rows that an answer names
MAX_FOREIGN_IDS = 20


def describe_mixture(space: SpaceMatch, foreign: Sequence[str | int], encoder: str) -> str | None:
    """Return which of the sampled rows do not look like the store's encoder; None if too few to
    matter.
    """
    kinds = [
        f"{each.share:.1%} look like {each.encoder!r}"
        for each in space.encoders
        if space.verdict == "mixed" and each.encoder != encoder and each.share >= LEAST_SHARE
    ]
    if foreign and space.unlike >= UNUSUAL_SHARE:
        kinds.append(f"{space.unlike:.0%} look like no encoder with anchors")
    if not kinds:
        return None
    named = ", ".join(repr(each) for each in foreign[:3])
    return (
        f"Of {space.rows} sampled rows, {' and '.join(kinds)}, and not like {encoder!r}: the rows "
        f"{named}, for example. The store mixes models, or its model changed under its name"
    )


def foreign_ids(space: SpaceMatch, ids: Sequence[str | int]) -> list[str | int]:
    """Return ids of the sampled rows that do not look like the store's encoder."""
    return [ids[row] for row in space.foreign[:MAX_FOREIGN_IDS]]


def check_space(
    services: Services, encoder: tables.EncoderRow, vectors: NDArray[np.float32]
) -> SpaceMatch:
    """Find the registered encoder that a store's vectors (n, d) look most like.

    encoder  the one that the store should hold; others of its identity are not compared
    """
    rows = torch.from_numpy(vectors)
    rows = torch.where(rows.isfinite().all(dim=1, keepdim=True), rows, 0.0)  # as zeros: left out
    anchors = comparable_anchors(services, encoder, vectors.shape[1])
    with services.take(services.turns.evaluations, encoder.project):
        return match_space(rows, anchors, encoder.name)
