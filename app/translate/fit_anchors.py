"""The anchors of a fit: those of the set that are not foreign to the store."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from torch import Tensor

from app.anchors import spaces
from app.anchors.samples import compare_pair
from app.context import Services
from app.db import tables
from app.db.cache import Key
from app.maths.geometry.space import Space, fit_space
from app.maths.quality.crossfit import FEWEST_DISTINCT

#: the name of the tensor in the blob: 1 for each anchor of the fit, 0 for the others
WEIGHTS_TENSOR = "weights"


@dataclass(frozen=True, eq=False)
class FitAnchors:
    """The anchors that a pair's translator is fitted to, chosen and measured on.

    counted  (k,) which of the set's anchors; None: all
    key      equal for equal anchors; () for all
    """

    counted: Tensor | None = None
    key: Key = ()

    def of(self, side: Tensor) -> Tensor:
        """Return these rows of a tensor with one row for each anchor of the set."""
        return side if self.counted is None else side[self.counted]


ALL_ANCHORS = FitAnchors()


def find_anchors(
    services: Services, source: tables.SpaceRow, target: tables.SpaceRow
) -> FitAnchors:
    """Return the anchors of a pair that are not foreign to the store; all without a sample, and
    where too few are left.
    """
    found = compare_pair(services, source, target)
    if found is None or found.foreign is None:
        return ALL_ANCHORS
    counted = ~found.foreign
    if int(counted.sum()) < FEWEST_DISTINCT:
        return ALL_ANCHORS
    return FitAnchors(counted, (sha256(counted.numpy().tobytes()).hexdigest(),))


def store_anchors(services: Services, anchors: FitAnchors) -> str | None:
    """Store the anchors as a blob, and return its content hash. Raises StorageUnavailable."""
    if anchors.counted is None:
        return None
    return services.blobs.put({WEIGHTS_TENSOR: anchors.counted.float()})


def stored_anchors(services: Services, row: tables.TranslatorRow) -> FitAnchors:
    """Return the anchors that a translator was fitted to."""
    if row.weights is None:
        return ALL_ANCHORS
    stored = services.blobs.get(row.weights, of=f"translator {row.content}")
    return FitAnchors(stored[WEIGHTS_TENSOR] == 1, (row.weights,))


def fitted_spaces(
    services: Services, source: tables.SpaceRow, target: tables.SpaceRow, anchors: FitAnchors
) -> tuple[Space, Space]:
    """Return both spaces of these anchors."""
    if anchors.counted is None:
        return spaces.fitted_space(services, source), spaces.fitted_space(services, target)
    x, y = (anchors.of(spaces.raw_anchors(services, space)) for space in (source, target))
    return fit_space(x), fit_space(y)


def describe_anchors(services: Services, row: tables.TranslatorRow) -> dict[str, Any] | None:
    """Return what the store's sample says, as JSON; None without one.

    It is not a part of the stored report, because samples change.
    """
    found = compare_pair(services, row.source, row.target)
    if found is None:
        return None
    count = len(stored_anchors(services, row).of(spaces.raw_anchors(services, row.source)))
    return {"counted": count, "store": found.coverage.model_dump()}
