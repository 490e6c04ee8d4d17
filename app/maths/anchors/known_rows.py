"""Finds the rows that are anchors: those nearest in a few dimensions, compared in all.

With unit vectors u and a, cos(u, a) > 1 - e means |u - a| < sqrt(2 e), and an orthogonal projection
makes no distance larger.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from app.maths.geometry.space import COSINE_ROWS, row_norms

#: A row is an anchor when their cosine is above 1 less this: float16 rounds to about 1e-7.
SAME_COSINE = 1e-6

#: Dimensions of the projection, in which different anchors are far apart.
PROJECTED = 16


def find_known_rows(
    anchors: Float[Tensor, "k d"], vectors: Float[Tensor, "n d"]
) -> Int64[Tensor, " n"]:
    """The anchor (n,) that each vector (n, d) equals except for its length, one of them where
    several are equal; -1 where there is none, and for vectors that are zero or not finite.
    """
    anchors, reach, dim = _unit(anchors), (2.0 * SAME_COSINE) ** 0.5, anchors.shape[1]
    some = torch.randn(dim, min(PROJECTED, dim), generator=torch.Generator().manual_seed(0))
    projection = torch.linalg.qr(some.double()).Q
    found = torch.full((len(vectors),), -1)
    for start in range(0, len(vectors), COSINE_ROWS):
        unit = _unit(vectors[start : start + COSINE_ROWS])
        distances, nearest = torch.cdist(unit @ projection, anchors @ projection).min(dim=1)
        near = ((distances <= reach) & (unit.abs().amax(dim=1) > 0)).nonzero().flatten()
        same = row_norms(unit[near] - anchors[nearest[near]]) <= reach
        found[start + near[same]] = nearest[near[same]]
    return found


def _unit(vectors: Float[Tensor, "n d"]) -> Float64[Tensor, "n d"]:
    """Unit vectors on the CPU; zero for those that are zero or not finite."""
    vectors = vectors.cpu().double()
    norms = row_norms(vectors)
    usable = (norms.isfinite() & (norms > 0))[:, None]
    return torch.where(usable, vectors / torch.where(usable, norms[:, None], 1.0), 0.0)
