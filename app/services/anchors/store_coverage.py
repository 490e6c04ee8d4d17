"""Compares the anchors of a space with the sample of a store, and finds foreign anchors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from app.maths.anchors.foreign import (
    FEWEST_SAMPLED,
    FOREIGN_LEVEL,
    StoreComparison,
    compare_with_store,
)
from app.services.anchors import samples, spaces
from app.services.context import Services
from app.storage import tables
from app.storage.queries import set_versions

#: cache size of a comparison, next to its rows
CACHED_COMPARISON_BYTES = 256


@dataclass(frozen=True, eq=False)
class StoreCoverage:
    """The comparison of a space's anchors with the sample of a store; None: too few vectors.

    sampled  the number of vectors of the sample
    """

    encoder: str
    sampled: int
    comparison: StoreComparison | None

    @property
    def has_foreign(self) -> bool:
        return self.comparison is not None and self.comparison.has_foreign

    def describe(self) -> str:
        """Return what the comparison found, as sentences."""
        if self.comparison is None:
            return (
                f"The sample of {self.encoder!r} has {self.sampled} vectors; a comparison with the "
                f"anchors needs at least {FEWEST_SAMPLED} different ones. Send a larger sample."
            )
        found, total = self.comparison, len(self.comparison.foreign)
        facts = (
            f"{int(found.foreign.sum())} of {total} anchors are unlike the sample of the store by "
            f"{self.encoder!r}, and the anchors cover {found.covered:.0%} of it"
        )
        if not found.has_foreign:
            return (
                f"{facts}. About {FOREIGN_LEVEL:.0%} are unlike it where all anchors are of the "
                "store."
            )
        return (
            f"{facts}. Foreign anchors make search results worse, so fits weigh them less. Add "
            "anchors of the store: POST .../suggest names some."
        )

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as JSON."""
        found = self.comparison
        verdict = "foreign-anchors" if self.has_foreign else "no-foreign-anchors"
        return {
            "encoder": self.encoder,
            "sampled": self.sampled,
            "verdict": "unknown" if found is None else verdict,
            "foreign": None if found is None else int(found.foreign.sum()),
            "share": None if found is None else found.share,
            "covered": None if found is None else found.covered,
            "detail": self.describe(),
        }


def compare_space(services: Services, space: tables.SpaceRow) -> StoreCoverage | None:
    """Compare the anchors of a space with its sample. Returns None without a sample.

    Raises BlobMissing, StorageUnavailable, Overloaded.
    """
    sample = samples.sample_of(services, space)
    if sample is None:
        return None

    def compare() -> StoreCoverage:
        anchors = spaces.raw_anchors(services, space)
        queries = _queries(services, space, len(anchors))
        with services.fitting():
            # Queries are unlike every store of documents.
            judged = None if queries is None else ~queries
            found = compare_with_store(anchors, sample, judged=judged)
        return StoreCoverage(space.encoder.name, len(sample), found)

    return services.cache.get_or_make(
        ("store coverage", space.id, space.blob, space.sample),
        compare,
        lambda value: CACHED_COMPARISON_BYTES + space.anchor_set.size,
    )


def compare_pair(
    services: Services, source: tables.SpaceRow, target: tables.SpaceRow
) -> StoreCoverage | None:
    """Compare a pair's anchors with the larger sample of both spaces. Returns None without one.

    Raises as `compare_space`.
    """
    sampled = [space for space in (source, target) if space.sample is not None]
    if not sampled:
        return None
    return compare_space(services, max(sampled, key=lambda space: space.sample_size or 0))


def _queries(services: Services, space: tables.SpaceRow, size: int) -> Tensor | None:
    """Return which of the space's anchors (k,) are queries; None if its set has no roles.

    Raises DatabaseUnavailable.
    """
    with services.db.transaction() as session:
        roles = set_versions.roles_of(session, space.anchor_set_id)
    if not roles:
        return None
    # Items are only appended: an earlier version has the first roles.
    return torch.tensor([each == "query" for each in roles[:size]], dtype=torch.bool)
