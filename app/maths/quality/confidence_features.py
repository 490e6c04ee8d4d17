"""Features of a vector's position relative to the anchors of a reference, for its confidence."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float32
from torch import Tensor

from app.maths.geometry.space import normalise, row_norms
from app.maths.translators.translator import ROWS_PER_STEP

#: Anchors that a vector is compared with, and the number of nearest ones that count.
MOST_COMPARED_ANCHORS = 2048
NEAREST_ANCHORS = 10

#: The columns of `features`; the first REGRESSION_FEATURES predict.
FEATURES = ("leverage", "distance", "nearest", "near", "explained", "balance", "length")
REGRESSION_FEATURES = 5
LEVERAGE, DISTANCE, BALANCE, LENGTH = (
    FEATURES.index(name) for name in ("leverage", "distance", "balance", "length")
)


@dataclass(frozen=True, eq=False)
class Reference:
    """The anchors that vectors are described relative to: the source's anchors outside one part, U
    = W diag(s) V^T.

    mean        (d,), scale: of those anchors, in the encoder's units
    right       (d, r)  V
    whitening   (r,)    1 / (s^2 + lambda), and `beyond` = 1 / lambda for the part outside the
                anchors' span
    anchors     (c, r)  at most MOST_COMPARED_ANCHORS of the unit anchors, as U V
    regression  (r, q)  V^T B with B the ridge regression of unit target anchors on unit source
                anchors
    """

    mean: Float32[Tensor, " d"]
    scale: float
    right: Float32[Tensor, "d r"]
    whitening: Float32[Tensor, " r"]
    beyond: float
    anchors: Float32[Tensor, "c r"]
    regression: Float32[Tensor, "r q"]

    @property
    def nbytes(self) -> int:
        return sum(
            each.nbytes
            for each in (self.mean, self.right, self.whitening, self.anchors, self.regression)
        )


def features(reference: Reference, vectors: Float32[Tensor, "n d"]) -> Float32[Tensor, "n f"]:
    """The FEATURES (n, 7) of vectors (n, d) relative to a reference; q = n(x) V are their
    coordinates in the anchors' span.

    leverage   log( sum_i q_i^2 / (s_i^2 + lambda) + (1 - |q|^2) / lambda ), the squared Mahalanobis
               distance of a direction
    distance   log |x - m| / s, -inf where x equals m
    nearest    the largest cosine to an anchor
    near       the mean of the NEAREST_ANCHORS largest cosines
    explained  log |n(x) B|, the length of the regression's prediction: for unit y it is the cosine
               that B expects
    balance    minus the mean of the NEAREST_ANCHORS smallest cosines, minus `near`: anchors form
               clusters, and their mirror images do not
    length     log |x|
    """
    return torch.cat(
        [
            _features(reference, vectors[start : start + ROWS_PER_STEP])
            for start in range(0, len(vectors), ROWS_PER_STEP)
        ]
    )


def _features(reference: Reference, vectors: Float32[Tensor, "n d"]) -> Float32[Tensor, "n f"]:
    tiny = torch.finfo(torch.float32).tiny
    direction, norms = normalise(vectors, reference.mean)
    inside = direction @ reference.right
    squared = inside.square()
    outside = (1.0 - squared.sum(dim=1)).clamp_min(0.0)
    cosines = inside @ reference.anchors.T
    near = cosines.topk(min(NEAREST_ANCHORS, cosines.shape[1]), dim=1).values
    far = cosines.topk(near.shape[1], dim=1, largest=False).values
    return torch.stack(
        [
            (squared @ reference.whitening + outside * reference.beyond).clamp_min(tiny).log(),
            (norms / reference.scale).log().float(),
            near[:, 0],
            near.mean(dim=1),
            (inside @ reference.regression).norm(dim=1).clamp_min(tiny).log(),
            -near.mean(dim=1) - far.mean(dim=1),
            row_norms(vectors).clamp_min(tiny).log().float(),
        ],
        dim=1,
    )
