"""The anchors that a vector finds, and the texts of anchors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from app.errors import InvalidRequest
from app.services.anchors import spaces
from app.services.anchors.anchor_embedding import read_inputs
from app.services.context import Services
from app.services.encoders.encoding import Inputs
from app.storage import tables
from app.storage.queries import resources

#: most characters of an item that a list shows
MAX_SHOWN = 200


@dataclass(frozen=True)
class FoundAnchor:
    """One anchor that a vector finds.

    score  the cosine of the two vectors
    text   the start of the item's text; None if the set keeps none, or the item is an image
    """

    row: int
    score: float
    text: str | None


def find_nearest(
    services: Services, space: tables.SpaceRow, vector: Tensor, count: int
) -> list[FoundAnchor]:
    """Return the anchors with the largest cosines to a vector (d,), best first.

    Vectors are compared as they are, as a vector database compares them.
    """
    anchors = spaces.raw_anchors(services, space)
    scores = normalize(anchors, dim=1) @ normalize(vector.float(), dim=0)
    best = torch.topk(scores, min(count, len(scores)))
    rows = best.indices.tolist()
    texts = _texts(services, space.anchor_set, rows)
    return [
        FoundAnchor(row, score, text)
        for row, score, text in zip(rows, best.values.tolist(), texts, strict=True)
    ]


def find_text(services: Services, project: str, anchor_set: str, row: int) -> str | None:
    """Return the start of an item's text; None if the set keeps none, or the item is an image.

    Raises AnchorSetNotFound, InvalidRequest, BlobMissing, StorageUnavailable.
    """
    with services.db.transaction() as session:
        found = resources.by_name(
            session, tables.AnchorSetRow, project, anchor_set, field="anchor_set"
        )
    if not 0 <= row < found.size:
        raise InvalidRequest(
            f"Anchor set {anchor_set!r} has {found.size} items. Send a `row` from 0 to "
            f"{found.size - 1}.",
            field="row",
        )
    return _texts(services, found, [row])[0]


def _texts(
    services: Services, anchor_set: tables.AnchorSetRow, rows: Sequence[int]
) -> list[str | None]:
    digest = anchor_set.inputs
    if digest is None:
        return [None] * len(rows)
    inputs = services.cache.get_or_make(
        ("anchor inputs", digest),
        lambda: read_inputs(services, digest, of=f"anchor set {anchor_set.name!r}"),
        _size_of,
    )
    items = [inputs.values[row] for row in rows]
    return [item[:MAX_SHOWN] if isinstance(item, str) else None for item in items]


def _size_of(inputs: Inputs) -> int:
    return sum(len(value) for value in inputs.values)
