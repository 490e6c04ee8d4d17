"""Compares the anchors of a space with the sample of a store, and finds foreign anchors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

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

SearchRole = Literal["query", "document"]

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
    anchors = spaces.raw_anchors(services, space)
    queries = of_role(services, space, "query", len(anchors))

    def compare() -> _Compared:
        with services.fitting():
            # Queries are unlike every store of documents.
            judged = None if queries is None else ~queries
            return _Compared(compare_with_store(anchors, sample, judged=judged))

    made = services.cache.get_or_make(
        ("store coverage", space.blob, space.sample, role_bits(queries)),
        compare,
        lambda value: CACHED_COMPARISON_BYTES + len(anchors),
    )
    return StoreCoverage(space.encoder.name, len(sample), made.comparison)


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


def of_role(
    services: Services, space: tables.SpaceRow, role: SearchRole, size: int
) -> Tensor | None:
    """Return which of the space's anchors (k,) have the role; None if its set has no roles.

    Raises DatabaseUnavailable.
    """

    def read() -> Tensor:
        with services.db.transaction() as session:
            roles = set_versions.roles_of(session, space.anchor_set_id) or []
        # Items are only appended: an earlier version has the first roles.
        return torch.tensor([each == "query" for each in roles[:size]], dtype=torch.bool)

    queries = services.cache.get_or_make(
        ("roles", space.anchor_set_id, size), read, lambda made: CACHED_COMPARISON_BYTES + len(made)
    )
    if len(queries) == 0:
        return None
    return queries if role == "query" else ~queries


def role_bits(rows: Tensor | None) -> bytes | None:
    """Return the rows of a role, as a part of a cache key."""
    return None if rows is None else rows.numpy().tobytes()


@dataclass(frozen=True, eq=False)
class _Compared:
    """A result that may be None, which the cache does not keep."""

    comparison: StoreComparison | None
