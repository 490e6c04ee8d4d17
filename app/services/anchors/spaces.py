"""The anchors of a stored space, and the space that is fitted to them."""

from __future__ import annotations

from torch import Tensor

from app.errors import blaming
from app.maths.geometry import space as spaces
from app.services.context import Services
from app.services.upkeep.cache_codecs import SPACE
from app.storage import tables
from app.storage.cache import Key

#: cache size of a space, relative to its unit anchors: these, and two factors of their spectrum
SPECTRUM_FACTOR = 3


def raw_anchors(services: Services, space: tables.SpaceRow) -> Tensor:
    """Return a space's raw anchors (k, d), float32. Raises BlobMissing, StorageUnavailable."""
    return services.cache.get_or_make(
        ("anchors", space.blob),
        lambda: services.blobs.get(space.blob, of=f"anchor set {space.anchor_set.name!r}")[
            "anchors"
        ],
        lambda tensor: tensor.nbytes,
    )


def space_key(space: tables.SpaceRow) -> Key:
    """The cache key; older versions, whose spaces had other fields, used other words."""
    return ("space, norms and rounding", space.blob)


def fitted_space(services: Services, space: tables.SpaceRow) -> spaces.Space:
    """Return the mean, scale and unit anchors of a stored space."""
    return services.cache.get_or_make(
        space_key(space),
        lambda: spaces.fit_space(raw_anchors(services, space)),
        lambda fitted: SPECTRUM_FACTOR * fitted.unit.nbytes,
        shared=SPACE,
    )


def require_direction(vectors: Tensor, *, field: str) -> spaces.Space:
    """Return the space of raw vectors. Raises DegenerateAnchors when they are all equal."""
    with blaming(field):
        return spaces.fit_space(vectors)
