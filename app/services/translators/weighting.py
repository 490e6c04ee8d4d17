"""Weights of the anchors in the fit of a translator, by the store's sample."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from torch import Tensor

from app.maths.anchors.foreign import choose_weights
from app.maths.geometry.space import Space, fit_space
from app.services.anchors import spaces
from app.services.anchors.samples import compare_pair
from app.services.context import Services
from app.storage import tables
from app.storage.cache import Key

#: the name of the weights' tensor in their blob
WEIGHTS_TENSOR = "weights"

#: cache size of weights, next to their rows
CACHED_WEIGHTS_BYTES = 512


@dataclass(frozen=True, eq=False)
class FitWeights:
    """The weights of a pair's anchors.

    weights  (k,) in the precision of fits; None: 1 for every anchor
    key      equal for equal weights; () for a fit without weights
    """

    weights: Tensor | None = None
    key: Key = ()

    @property
    def counted(self) -> Tensor | None:
        """The anchors (k,) that fits are chosen and measured on: those of weight 1. None: all."""
        return None if self.weights is None else self.weights == 1


NO_WEIGHTS = FitWeights()


def find_weights(
    services: Services, source: tables.SpaceRow, target: tables.SpaceRow
) -> FitWeights:
    """Return the weights of a pair, from the cache or chosen now. Raises Overloaded."""
    coverage = compare_pair(services, source, target)
    if coverage is None or coverage.comparison is None or not coverage.has_foreign:
        return NO_WEIGHTS
    foreign = coverage.comparison.foreign
    # Both directions of a cascade share one choice, which takes seconds.
    source, target = sorted((source, target), key=lambda space: space.blob)

    def choose() -> FitWeights:
        x, y = spaces.raw_anchors(services, source), spaces.raw_anchors(services, target)
        with services.fitting():
            chosen = choose_weights(x, y, foreign)
        if chosen is None:
            return NO_WEIGHTS
        stored = chosen.float()  # as its blob has them
        return FitWeights(stored.double(), (sha256(stored.numpy().tobytes()).hexdigest(),))

    return services.cache.get_or_make(
        ("weights", source.blob, target.blob, foreign.numpy().tobytes()),
        choose,
        lambda value: CACHED_WEIGHTS_BYTES + 8 * len(foreign),
    )


def store_weights(services: Services, fit_weights: FitWeights) -> str | None:
    """Store the weights as a blob, and return its content hash. Raises StorageUnavailable."""
    if fit_weights.weights is None:
        return None
    return services.blobs.put({WEIGHTS_TENSOR: fit_weights.weights.float()})


def stored_weights(services: Services, row: tables.TranslatorRow) -> FitWeights:
    """Return the weights that a translator was fitted with. Raises BlobMissing."""
    if row.weights is None:
        return NO_WEIGHTS
    stored = services.blobs.get(row.weights, of=f"translator {row.content}")
    return FitWeights(stored[WEIGHTS_TENSOR].double(), (row.weights,))


def fitted_spaces(
    services: Services, source: tables.SpaceRow, target: tables.SpaceRow, fit_weights: FitWeights
) -> tuple[Space, Space]:
    """Return both spaces with the weights. Raises DegenerateAnchors."""
    weights = fit_weights.weights
    if weights is None:
        return spaces.fitted_space(services, source), spaces.fitted_space(services, target)
    x, y = (spaces.raw_anchors(services, space) for space in (source, target))
    return fit_space(x, weights), fit_space(y, weights)


def describe_weights(services: Services, row: tables.TranslatorRow) -> dict[str, Any] | None:
    """Return what the store's sample says, as JSON; None without one.

    It is not a part of the stored report, because samples change.
    """
    coverage = compare_pair(services, row.source, row.target)
    if coverage is None:
        return None
    size = len(spaces.raw_anchors(services, row.source))
    fit_weights = stored_weights(services, row)
    weights, counted = fit_weights.weights, fit_weights.counted
    return {
        "counted": size if counted is None else int(counted.sum()),
        "total": float(size) if weights is None else float(weights.sum()),
        "store": coverage.as_json(),
    }
