"""Compares a sample of a store with the anchors of every encoder of its dimension."""

from __future__ import annotations

import torch
from torch import Tensor

from app.errors import StoreUnsupported
from app.maths.anchors.space_match import SpaceMatch, match_space
from app.services.anchors import spaces
from app.services.context import Services
from app.storage import tables
from app.storage.queries import resources
from app.stores.base import Store, StoreVectors

#: rows of a store that are compared
CHECKED_ROWS = 256

#: most encoders that a store is compared with
MOST_CHECKED_ENCODERS = 32


def sample_store(store: Store) -> StoreVectors:
    """Return vectors (n, d) spread over the old side of a store."""
    return store.sample(CHECKED_ROWS).vectors


def require_texts(store: Store) -> None:
    """Raises StoreUnsupported if no sampled row has a text in the store's `text_field`."""
    ids = store.sample(CHECKED_ROWS).ids
    if len(ids) and not any(isinstance(each, str) for each in store.texts(ids)):
        raise StoreUnsupported(
            f"None of {len(ids)} sampled rows has text in `{store.location.text_field}`. Name the "
            "field that holds the text in `text_field`, or leave it out.",
            field="text_field",
        )


def check_space(
    services: Services,
    encoder: tables.EncoderRow,
    vectors: StoreVectors,
    *,
    anchor_set: str | None = None,
) -> SpaceMatch:
    """Find the registered encoder that a store's vectors (n, d) look most like.

    encoder     the one that the store should hold
    anchor_set  the set whose anchors are compared where it has them; None: the largest of each
                encoder
    Raises Overloaded, BlobMissing, StorageUnavailable.
    """
    rows = torch.from_numpy(vectors)
    rows = rows[rows.isfinite().all(dim=1)]
    anchors = _anchors(services, encoder, vectors.shape[1], anchor_set)
    with services.evaluating():
        return match_space(rows, anchors, encoder.name)


def _anchors(
    services: Services, encoder: tables.EncoderRow, dim: int, anchor_set: str | None
) -> dict[str, Tensor]:
    """Return the anchors of every encoder of this dimension, the expected one first."""
    with services.db.transaction() as session:
        rows = [row for row in resources.spaces(session, encoder.project) if row.encoder.dim == dim]
    chosen: dict[str, tables.SpaceRow] = {}
    for row in sorted(rows, key=lambda row: (row.anchor_set.name != anchor_set, -_size(row))):
        chosen.setdefault(row.encoder.name, row)
    names = sorted(chosen, key=lambda name: (name != encoder.name, name))
    return {
        name: spaces.raw_anchors(services, chosen[name]) for name in names[:MOST_CHECKED_ENCODERS]
    }


def _size(row: tables.SpaceRow) -> int:
    return row.anchor_set.size
