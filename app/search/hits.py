"""What a store returned for queries: joined, checked, and with the new vectors that rows have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from app.errors import StoreChanged
from app.stores.port import Hits, Page


def union(first: Hits, second: Hits) -> Hits:
    """Return the rows of both, those of the first before those that only the second has."""
    seen = set(first.ids)
    places = [place for place, each in enumerate(second.ids) if each not in seen]
    vectors = [each.vectors for each in (first, second)]
    if vectors[0] is None or vectors[1] is None:
        joined = None
    elif not first.ids:
        joined = vectors[1]
    else:
        joined = np.concatenate([vectors[0], vectors[1][places]]) if places else vectors[0]
    payloads = (
        None
        if first.payloads is None or second.payloads is None
        else [*first.payloads, *(second.payloads[place] for place in places)]
    )
    return Hits(
        ids=[*first.ids, *(second.ids[place] for place in places)],
        scores=[*first.scores, *(second.scores[place] for place in places)],
        vectors=joined,
        payloads=payloads,
    )


def hit_vectors(hits: Hits, dim: int) -> Tensor:
    """Return the vectors of candidates (m, d). Raises StoreChanged for another dimension."""
    if not len(hits.ids) or hits.vectors is None:
        return torch.empty(0, 0)
    if hits.vectors.shape != (len(hits.ids), dim):
        raise StoreChanged(
            f"The store returned vectors of shape {hits.vectors.shape}, and its encoder has {dim} "
            "dimensions. Delete the store here, and connect it again."
        )
    return torch.from_numpy(np.require(hits.vectors, requirements=["C", "W"]))


def known_vectors(hits: Sequence[Hits], new: Page | None, dim: int) -> tuple[Tensor, Tensor] | None:
    """Return the candidates of all queries that have a new vector, and these vectors."""
    if new is None or not len(new.ids) or new.vectors.shape[1] != dim:
        return None
    rows = {each: row for row, each in enumerate(new.ids) if np.isfinite(new.vectors[row]).all()}
    every = [each for one in hits for each in one.ids]
    places = [place for place, each in enumerate(every) if each in rows]
    chosen = new.vectors[[rows[every[place]] for place in places]]
    return torch.tensor(places, dtype=torch.int64), torch.from_numpy(chosen)
