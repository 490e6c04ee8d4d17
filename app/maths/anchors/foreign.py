"""Which anchors are foreign to a store.

A sample of the store's vectors, which have no partners, says what the store looks like. With
directions v = (x - m) / |x - m| about the sample's mean m, the likeness of a vector is the mean
cosine to its NEAREST nearest vectors of the sample. An anchor's p-value is the share of the
sample's own vectors that are less like the rest of the sample than the anchor is:

    p = (1 + #{sample rows with likeness <= the anchor's}) / (n + 1).

For an anchor that was drawn as the sample was, p exceeds each level a with probability 1 - a at
least, for every distribution. Anchors with p < FOREIGN_LEVEL are foreign.
Source: conformal outlier detection, Bates et al. 2023, section 2 (a vector of the sample is
compared without itself).

Fits leave foreign anchors out: next to the right ones they make search results worse.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float32
from torch import Tensor

from app.maths.geometry.space import COSINE_ROWS, draw_rows, normalise

#: Nearest vectors of the sample that the likeness is a mean over.
NEAREST = 5

#: The share of anchors of the store that are called foreign all the same.
FOREIGN_LEVEL = 0.05

#: A sample of fewer different vectors is not compared: its p-values are coarser than FOREIGN_LEVEL.
FEWEST_SAMPLED = 50

#: A comparison uses at most this many random rows of the sample, to limit the time.
MAX_SAMPLED = 2048

#: A set has foreign anchors when at least this share of them is foreign.
LEAST_FOREIGN_SHARE = 0.1


@dataclass(frozen=True, eq=False)
class StoreComparison:
    """Anchors compared with a sample of a store.

    foreign  (k,) the anchors that are foreign to the store
    share    the estimated share of foreign anchors, corrected for FOREIGN_LEVEL; in [0, 1]
    sampled  the number of vectors of the sample that were compared
    """

    foreign: Bool[Tensor, " k"]
    share: float
    sampled: int

    @property
    def has_foreign(self) -> bool:
        """Whether so many anchors are foreign that fits leave them out."""
        return self.share >= LEAST_FOREIGN_SHARE


def compare_with_store(
    anchors: Float[Tensor, "k d"],
    sample: Float[Tensor, "n d"],
) -> StoreComparison | None:
    """Compare anchors with a sample of a store, both of one encoder, in its units.

    Returns None below FEWEST_SAMPLED different vectors.
    """
    sample, anchors = sample[draw_rows(len(sample), MAX_SAMPLED)].double(), anchors.double()
    if len(torch.unique(sample, dim=0)) < FEWEST_SAMPLED:
        return None
    mean = sample.mean(dim=0)
    store, unit = (normalise(each, mean)[0].float() for each in (sample, anchors))
    usual = _likeness(store, store, own=True).sort().values
    lower = torch.searchsorted(usual, _likeness(unit, store, own=False), right=True)
    foreign = (1.0 + lower.double()) / (len(store) + 1.0) < FOREIGN_LEVEL
    found = float(foreign.double().mean())
    return StoreComparison(
        foreign=foreign,
        share=max(0.0, (found - FOREIGN_LEVEL) / (1.0 - FOREIGN_LEVEL)),
        sampled=len(store),
    )


def _likeness(
    vectors: Float32[Tensor, "m d"], store: Float32[Tensor, "n d"], *, own: bool
) -> Float32[Tensor, " m"]:
    """The mean cosine of unit vectors (m, d) to their nearest ones of the store (n, d).

    own  the vectors are the store's: row i is not compared with itself
    """
    parts = []
    for start in range(0, len(vectors), COSINE_ROWS):
        cosines = vectors[start : start + COSINE_ROWS] @ store.T
        if own:
            cosines.diagonal(start).fill_(-torch.inf)
        parts.append(cosines.topk(NEAREST, dim=1).values.mean(dim=1))
    return torch.cat(parts)
