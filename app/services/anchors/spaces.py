"""Fitted spaces: an encoder's anchors with their mean, scale and unit vectors."""

from __future__ import annotations

from torch import Tensor

from app.errors import (
    AnchorageError,
)
from app.maths.geometry import space as spaces
from app.services.context import Services
from app.services.upkeep.cache_codecs import SPACE
from app.storage import tables
from app.storage.cache import Key

#: what a space weighs, in the size of its unit anchors: they, and the two factors of their spectrum, once it is asked for
SPECTRUM_FACTOR = 3


def raw_anchors(services: Services, space: tables.SpaceRow) -> Tensor:
    """A space's raw anchors (k, d), float32."""
    return services.cache.get_or_make(
        ("anchors", space.blob),
        lambda: services.blobs.get(space.blob, of=f"anchor set {space.anchor_set.name!r}")[
            "anchors"
        ],
        lambda tensor: tensor.nbytes,
    )


def space_key(space: tables.SpaceRow) -> Key:
    """Where the cache has it; another word than the one of versions whose spaces had no norms."""
    return ("space and norms", space.blob)


def fitted_space(services: Services, space: tables.SpaceRow) -> spaces.Space:
    """Mean, scale and unit anchors of a stored space."""
    return services.cache.get_or_make(
        space_key(space),
        lambda: spaces.fit_space(raw_anchors(services, space)),
        lambda fitted: SPECTRUM_FACTOR * fitted.unit.nbytes,
        shared=SPACE,
    )


def require_direction(vectors: Tensor, *, field: str) -> spaces.Space:
    """The fitted space of raw vectors. Raises DegenerateAnchors, naming `field`, when they are all the same."""
    try:
        return spaces.fit_space(vectors)
    except AnchorageError as error:
        raise error.at(field) from None
