"""Rows whose texts the target encoder encodes again, and their vectors by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.context import Services
from app.db import tables
from app.encoders import encoding
from app.moves.maps import MappedPage
from app.request_context import RequestContext
from app.stores.port import Store, StoreId, StoreVectors


@dataclass(frozen=True, eq=False)
class ReEmbeddedRows:
    """Vectors (m, d) by the target encoder, of the rows at these places of a list of ids.

    The other rows of the list have no text that the encoder reads.
    """

    places: Sequence[int]
    vectors: StoreVectors


def choose_rows(plan: Mapping[str, Any], mapped: MappedPage) -> NDArray[np.bool_]:
    """Return which rows (n,) to encode again, by the plan of a migration: all, or none.

    mapped  the translations of old vectors
    Rows that are anchors never are, because their native vectors are known.
    """
    if not plan.get("re_embed"):
        return np.zeros(len(mapped.vectors), dtype=np.bool_)
    return ~mapped.known


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
