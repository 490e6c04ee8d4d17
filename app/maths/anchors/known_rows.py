"""Finds the rows that are anchors: a k-d tree of the unit anchors, searched within a small radius.

With unit vectors u and a, cos(u, a) > 1 - e means |u - a| < sqrt(2 e).
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from app.maths.geometry.space import row_norms

#: A row is an anchor when their cosine is above 1 less this: float16 rounds to about 1e-7.
SAME_COSINE = 1e-6


def index_known_rows(anchors: Float[Tensor, "k d"]) -> Any:
    """A k-d tree of raw anchors (k, d) for `find_known_rows`."""
    from scipy.spatial import cKDTree  # takes half a second, and few processes need it

    return cKDTree(_unit(anchors).numpy())


def find_known_rows(known: Any, vectors: Float[Tensor, "n d"]) -> Int64[Tensor, " n"]:
    """The anchor (n,) that each vector (n, d) equals except for its length, one of them where
    several are equal; -1 where there is none, and for vectors that are zero or not finite.
    """
    unit = _unit(vectors)
    reach = (2.0 * SAME_COSINE) ** 0.5
    distances, rows = known.query(unit.numpy(), distance_upper_bound=reach)
    found = torch.from_numpy(distances).isfinite() & (unit.abs().amax(dim=1) > 0)
    return torch.where(found, torch.from_numpy(rows), -1)


def _unit(vectors: Float[Tensor, "n d"]) -> Float64[Tensor, "n d"]:
    """Unit vectors on the CPU; zero for those that are zero or not finite."""
    vectors = vectors.cpu().double()
    norms = row_norms(vectors)
    usable = (norms.isfinite() & (norms > 0))[:, None]
    return torch.where(usable, vectors / torch.where(usable, norms[:, None], 1.0), 0.0)
