"""Weights of the anchors in the fit of a translator: by their role, and by the store's sample."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from app.maths.anchors.foreign import FEWEST_OF_ROLE, choose_weights
from app.maths.geometry.space import Space, fit_space
from app.services.anchors import spaces
from app.services.anchors.store_coverage import (
    SearchRole,
    compare_pair,
    of_role,
    role_bits,
)
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

    weights  (k,) float32; None: 1 for every anchor
    counted  (k,) the anchors that fits are chosen and measured on; None: all
    key      equal for equal fits; () for a fit without weights
    """

    weights: Tensor | None = None
    counted: Tensor | None = None
    key: Key = ()


NO_WEIGHTS = FitWeights()


def find_weights(
    services: Services, source: tables.SpaceRow, target: tables.SpaceRow, role: SearchRole | None
) -> FitWeights:
    """Return the weights for vectors of a role, from the cache or chosen now. Raises Overloaded."""
    coverage = compare_pair(services, source, target)
    foreign = None
    if coverage is not None and coverage.comparison is not None and coverage.has_foreign:
        foreign = coverage.comparison.foreign
    size = len(spaces.raw_anchors(services, source))
    rows = None if role is None else of_role(services, source, role, size)
    if foreign is None and rows is None:
        return NO_WEIGHTS
    if rows is None:  # both directions of a cascade share one choice, which takes seconds
        source, target = sorted((source, target), key=lambda space: space.blob)

    def choose() -> FitWeights:
        x, y = spaces.raw_anchors(services, source), spaces.raw_anchors(services, target)
        with services.fitting():
            chosen = choose_weights(x, y, foreign=foreign, of_role=rows)
        if chosen is None:
            return NO_WEIGHTS
        weights = chosen.weights.float()
        key = sha256(weights.numpy().tobytes() + (role_bits(chosen.counted) or b"")).hexdigest()
        return FitWeights(weights, chosen.counted, (key,))

    return services.cache.get_or_make(
        ("weights", source.blob, target.blob, role_bits(foreign), role_bits(rows)),
        choose,
        lambda value: CACHED_WEIGHTS_BYTES + 5 * size,
    )


def store_weights(services: Services, fit_weights: FitWeights) -> str | None:
    """Store the weights as a blob, and return its content hash. Raises StorageUnavailable."""
    if fit_weights.weights is None:
        return None
    return services.blobs.put({WEIGHTS_TENSOR: fit_weights.weights})


def stored_weights(services: Services, row: tables.TranslatorRow) -> FitWeights:
    """Return the weights that a translator was fitted with. Raises BlobMissing.

    The anchors that count are those of weight 1 which have the translator's role.
    """
    digest = row.weights
    if digest is None:
        return NO_WEIGHTS
    weights = services.cache.get_or_make(
        ("stored weights", digest),
        lambda: services.blobs.get(digest, of=f"translator {row.content}")[WEIGHTS_TENSOR],
        lambda tensor: tensor.nbytes,
    )
    counted, rows = weights == 1, role_rows(services, row, len(weights))
    if rows is not None and int((counted & rows).sum()) >= FEWEST_OF_ROLE:
        counted = counted & rows
    return FitWeights(weights, counted, (digest,))


def role_rows(services: Services, row: tables.TranslatorRow, size: int) -> Tensor | None:
    """Return which anchors have the translator's role; None without a role or roles."""
    role: Any = row.role
    return None if role is None else of_role(services, row.source, role, size)


def fitted_spaces(
    services: Services, source: tables.SpaceRow, target: tables.SpaceRow, fit_weights: FitWeights
) -> tuple[Space, Space]:
    """Return both spaces with the weights. Raises DegenerateAnchors."""
    weights = fit_weights.weights
    if weights is None:
        return spaces.fitted_space(services, source), spaces.fitted_space(services, target)
    x, y = (spaces.raw_anchors(services, space) for space in (source, target))
    return fit_space(x, weights.double()), fit_space(y, weights.double())


def describe_weights(services: Services, row: tables.TranslatorRow) -> dict[str, Any] | None:
    """Return what the anchors' roles and the store's sample say, as JSON; None without both.

    It is not a part of the stored report, because samples change.
    """
    coverage = compare_pair(services, row.source, row.target)
    if coverage is None and row.role is None:
        return None
    size = len(spaces.raw_anchors(services, row.source))
    fit_weights, rows = stored_weights(services, row), role_rows(services, row, size)
    weights, counted = fit_weights.weights, fit_weights.counted
    return {
        "role": row.role,
        "of_role": None if rows is None else int(rows.sum()),
        "counted": size if counted is None else int(counted.sum()),
        "total": float(size) if weights is None else float(weights.sum()),
        "store": None if coverage is None else coverage.as_json(),
    }


def as_vector(weights: Tensor | None) -> Tensor | None:
    """Return the weights in the precision of fits."""
    return None if weights is None else weights.to(torch.float64)
