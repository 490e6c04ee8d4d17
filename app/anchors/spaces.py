"""The anchors of a stored space, and the space that is fitted to them."""

from __future__ import annotations

from torch import Tensor

from app.context import Services
from app.db import resources, tables
from app.db.cache import Key
from app.db.redis import dataclass_codec
from app.errors import blaming
from app.maths.geometry import space as spaces

SPACE = dataclass_codec(spaces.Space)

#: most encoders that a store is compared with, and most anchor sets of each
MAX_CHECKED_ENCODERS, MAX_CHECKED_SETS = 32, 3

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


def comparable_anchors(
    services: Services, encoder: tables.EncoderRow, dim: int
) -> dict[str, list[Tensor]]:
    """Return anchors of every encoder of this dimension, of its largest sets, the expected one
    first.
    """
    with services.db.transaction() as session:
        rows = [row for row in resources.spaces(session, encoder.project) if row.encoder.dim == dim]
    chosen: dict[str, list[tables.SpaceRow]] = {}
    for row in sorted(rows, key=lambda row: -row.anchor_set.size):
        other = row.encoder
        same = other.identity is not None and other.identity == encoder.identity
        if other.id == encoder.id or not same:
            chosen.setdefault(other.name, []).append(row)
    names = sorted(chosen, key=lambda name: (name != encoder.name, name))
    return {
        name: [raw_anchors(services, row) for row in chosen[name][:MAX_CHECKED_SETS]]
        for name in names[:MAX_CHECKED_ENCODERS]
    }
