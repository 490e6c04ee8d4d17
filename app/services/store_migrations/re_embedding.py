"""Which rows of a migration are encoded again, and their vectors by the target encoder.

Rows have a priority, and those below a threshold of the plan are encoded again. The threshold is a
quantile of the priorities of the store's sample, so that the share of the rows is about the share
that the plan names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from app.errors import InvalidRequest
from app.maths.relevance.re_embedding import centrality
from app.services.context import Services
from app.services.encoders import encoding
from app.services.request_context import RequestContext
from app.services.store_migrations.maps import MAPPED_ROWS, MappedPage, MigrationMaps
from app.storage import tables
from app.stores.base import Store, StoreId, StoreVectors

#: above every priority: all rows are below it
ABOVE_ALL = 2.0

#: quantiles of the sample's priorities that a plan keeps: every percent
KEPT_QUANTILES = 101


@dataclass(frozen=True, eq=False)
class ReEmbeddedRows:
    """Vectors (m, d) by the target encoder, of the rows at these places of a list of ids.

    The other rows of the list have no text that the encoder reads.
    """

    places: Sequence[int]
    vectors: StoreVectors


def choose_rows(
    maps: MigrationMaps, plan: Mapping[str, Any], mapped: MappedPage
) -> NDArray[np.bool_]:
    """Return which rows (n,) to encode again, by the plan of a migration.

    mapped  the translations of old vectors
    Rows without a direction are chosen whenever the plan encodes any. Rows that are anchors never
    are, because their native vectors are known.
    """
    below = plan.get("re_embed_below")
    if not plan.get("re_embed") or below is None:
        return np.zeros(len(mapped.vectors), dtype=np.bool_)
    chosen = mapped.undirected.copy()
    chosen |= priorities(maps, mapped) < float(below)
    chosen &= ~mapped.known
    return chosen


def priorities(maps: MigrationMaps, mapped: MappedPage) -> NDArray[np.float64]:
    """Return the priority (n,) of each row, less its centrality: the lowest is encoded first, and
    NaN has no direction.
    """
    central = [
        centrality(
            torch.from_numpy(mapped.vectors[start : start + MAPPED_ROWS]), maps.forward.native
        )
        for start in range(0, len(mapped.vectors), MAPPED_ROWS)
    ]
    priority = -torch.cat(central).numpy() if central else np.zeros(0)
    priority[mapped.undirected] = np.nan
    return np.asarray(priority, dtype=np.float64)


def sample_quantiles(maps: MigrationMaps, sample: StoreVectors) -> list[float]:
    """Return KEPT_QUANTILES quantiles of the priorities of a sample; [] if all of it is kept."""
    mapped = maps.forward.map_rows(sample)
    values = priorities(maps, mapped)
    values = values[np.isfinite(values) & ~mapped.known]
    if not len(values):
        return []
    levels = np.linspace(0.0, 1.0, KEPT_QUANTILES)
    quantiles: list[float] = np.quantile(values, levels).round(6).tolist()
    return quantiles


def threshold(quantiles: Sequence[float], share: float) -> float | None:
    """Return the priority below which that share of the sample lies; None for no rows.

    Raises InvalidRequest without quantiles.
    """
    if share <= 0:
        return None
    if share >= 1:
        return ABOVE_ALL
    if not quantiles:
        raise InvalidRequest(
            "Rows cannot be chosen, because all rows of the sample are anchors, or stay as they "
            "are. Remove `re_embed`.",
            field="re_embed",
        )
    return float(np.interp(share, np.linspace(0.0, 1.0, len(quantiles)), quantiles))


def re_embed(
    services: Services,
    context: RequestContext,
    row: tables.MigrationRow,
    store: Store,
    ids: Sequence[StoreId],
) -> ReEmbeddedRows:
    """Encode the texts of rows with the target encoder.

    A row is left out without text, and with a text that the encoder refuses. Longer texts than the
    server reads are cut.
    Raises the errors of the store, StoreUnsupported without texts, EncoderChanged where the target
    makes other vectors than those of its anchors, and the errors of `encode` that are not about a
    text.
    """
    encoding.require_same_vectors(row.target)
    most = services.limits.input_characters
    texts = {
        place: text[:most]
        for place, text in enumerate(store.texts(ids))
        if text is not None and text.strip()
    }
    places = list(texts)
    accepted, encoded = encoding.encode_valid(services, context, row.target, list(texts.values()))
    return ReEmbeddedRows(
        [places[each] for each in accepted], np.ascontiguousarray(encoded.vectors.numpy())
    )
