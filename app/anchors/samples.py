"""Samples of a store: vectors of one encoder that a client's vector database holds.

They have no partners in another space. They say what the store looks like, how large it is, and
which anchors are foreign to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, Field
from sqlalchemy.orm import Session
from torch import Tensor

from app.access.audit import record_audit
from app.anchors import spaces
from app.context import RequestContext, Services
from app.db import resources, tables
from app.encoders.incoming import checked_vectors
from app.maths.anchors.foreign import (
    FEWEST_SAMPLED,
    FOREIGN_LEVEL,
    StoreComparison,
    compare_with_store,
)

#: the name of a sample's tensor in its blob
SAMPLE_TENSOR = "sample"

#: cache size of a comparison, next to its rows
CACHED_COMPARISON_BYTES = 256


class StoreCoverage(BaseModel):
    """The anchors compared with the sample of a store."""

    encoder: str = Field(description="Encoder of the sample.")
    sampled: int = Field(description="Number of vectors in the sample.")
    verdict: Literal["no-foreign-anchors", "foreign-anchors", "unknown"] = Field(
        description="`foreign-anchors`: at least 10 % of the anchors are of another corpus. "
        "`unknown`: the sample has fewer than 50 different vectors."
    )
    foreign: int | None = Field(
        description="Number of anchors that are unlike the sample: about 5 % if all anchors are "
        "of the store. Null if unknown."
    )
    share: float | None = Field(
        description="Estimated share of foreign anchors, 0 to 1. Null if unknown."
    )
    detail: str = Field(description="The same in words.")


@dataclass(frozen=True, eq=False)
class ComparedSpace:
    """What a sample says about the anchors of a space.

    foreign  (k,) which anchors are unlike the store; None where too few are, or it is unknown
    """

    coverage: StoreCoverage
    foreign: Tensor | None


def sample_of(services: Services, space: tables.SpaceRow) -> Tensor | None:
    """Return the sample (n, d), float32, of the store; None without one."""
    if space.sample is None:
        return None
    stored = services.blobs.get(space.sample, of=f"anchor set {space.anchor_set.name!r}")
    return stored[SAMPLE_TENSOR]


def put_sample(
    services: Services,
    context: RequestContext,
    *,
    anchor_set: str,
    encoder: str,
    vectors: Tensor,
    store_size: int | None,
) -> tuple[tables.AnchorSetRow, ComparedSpace | None]:
    """Store the sample of a space in place of an earlier one, and compare the anchors with it.

    Raises the not-found errors, AnchorsNotEmbedded, Overloaded, and the vector errors.
    """
    with services.db.transaction() as session:
        space = _find(session, context.project, anchor_set, encoder)
    raw = checked_vectors(vectors, field="vectors", limits=services.limits, dim=space.encoder.dim)
    digest = services.blobs.put({SAMPLE_TENSOR: raw})
    space.sample, space.sample_size = digest, len(raw)  # outside a session, which would write it
    coverage = compare_space(services, space)  # before any row changes: it may be overloaded
    with services.db.transaction() as session:
        space = _find(session, context.project, anchor_set, encoder)
        space.sample, space.sample_size, space.store_size = digest, len(raw), store_size
        record_audit(session, context, "sample", "anchor-set", anchor_set)
        session.flush()
        row = resources.by_name(session, tables.AnchorSetRow, context.project, anchor_set)
    services.names.forget()
    return row, coverage


def _find(session: Session, project: str, anchor_set: str, encoder: str) -> tables.SpaceRow:
    return resources.space(
        session,
        resources.by_name(session, tables.AnchorSetRow, project, anchor_set),
        resources.by_name(session, tables.EncoderRow, project, encoder, field="encoder"),
    )


def compare_space(services: Services, space: tables.SpaceRow) -> ComparedSpace | None:
    """Compare the anchors of a space with its sample. Returns None without a sample."""
    if space.sample is None:
        return None

    def compare() -> ComparedSpace:
        anchors, sample = spaces.raw_anchors(services, space), sample_of(services, space)
        assert sample is not None
        with services.take(services.turns.fits, space.project):
            found = compare_with_store(anchors, sample)
        coverage = _describe(space.encoder.name, len(sample), found)
        has_foreign = found is not None and found.has_foreign
        return ComparedSpace(coverage, found.foreign if found and has_foreign else None)

    return services.cache.get_or_make(
        ("store coverage", space.id, space.blob, space.sample),
        compare,
        lambda value: CACHED_COMPARISON_BYTES + space.anchor_set.size,
    )


def compare_pair(
    services: Services, source: tables.SpaceRow, target: tables.SpaceRow
) -> ComparedSpace | None:
    """Compare a pair's anchors with the larger sample of both spaces. Returns None without one."""
    sampled = [space for space in (source, target) if space.sample is not None]
    if not sampled:
        return None
    return compare_space(services, max(sampled, key=lambda space: space.sample_size or 0))


def _describe(encoder: str, sampled: int, found: StoreComparison | None) -> StoreCoverage:
    """Return the words of a comparison; None: the sample has too few different vectors."""
    if found is None:
        return StoreCoverage(
            encoder=encoder,
            sampled=sampled,
            verdict="unknown",
            foreign=None,
            share=None,
            detail=f"The sample of {encoder!r} has {sampled} vectors; a comparison with the "
            f"anchors needs at least {FEWEST_SAMPLED} different ones. Send a larger sample.",
        )
    foreign, total = int(found.foreign.sum()), len(found.foreign)
    what = (
        "Foreign anchors make search results worse, so fits weigh them less. Add anchors of the "
        "store."
        if found.has_foreign
        else f"About {FOREIGN_LEVEL:.0%} are unlike it where all anchors are of the store."
    )
    return StoreCoverage(
        encoder=encoder,
        sampled=sampled,
        verdict="foreign-anchors" if found.has_foreign else "no-foreign-anchors",
        foreign=foreign,
        share=found.share,
        detail=f"{foreign} of {total} anchors are unlike the sample of the store by {encoder!r}. "
        f"{what}",
    )
