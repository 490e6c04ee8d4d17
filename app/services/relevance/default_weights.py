"""The weight of fuse for a pair of spaces, without judgements."""

from __future__ import annotations

from app.maths.relevance.fuse_weight import default_weight, held_out_cosine
from app.services.anchors import made_pairs, spaces
from app.services.context import Services
from app.storage import tables

#: cache size of a weight
CACHED_WEIGHT_BYTES = 256


def default_weight_of(
    services: Services, source: tables.SpaceRow, target: tables.SpaceRow
) -> float:
    """Return the weight, from the cache or measured now on held-out anchors. Raises Overloaded.

    Made pairs give no weight to a translation that they cannot measure.
    """
    if made_pairs.estimate_of(source.anchor_set) is not None:
        return 0.0

    def measure() -> float:
        x, y = spaces.raw_anchors(services, source), spaces.raw_anchors(services, target)
        with services.fitting():
            return default_weight(held_out_cosine(x, y))

    return services.cache.get_or_make(
        ("fuse-weight", source.blob, target.blob), measure, lambda _: CACHED_WEIGHT_BYTES
    )
