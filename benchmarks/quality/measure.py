"""The measures of app.maths.quality.metrics for many translations into one set of native vectors,
fast.

The definitions are those of that module. Cosines here are float32, and what depends on the native
vectors alone is computed once: make one `Index` for each target and split, and measure every source
and method with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from app.maths.geometry.space import row_norms, unit_rows
from app.maths.quality.metrics import DEFAULT_NEIGHBOURS


@dataclass(frozen=True, eq=False)
class Measured:
    """One translation of n test items. Recalls are at min(10, size of the index - 1)."""

    cosine: float
    mrr: float
    recall: float


class Index:
    """Native test vectors (n, d_y), centred on the target anchors' mean, and their neighbours; n >=
    2.
    """

    def __init__(self, native: Tensor) -> None:
        n = len(native)
        self._unit = _unit(native)
        own = _without_self(self._unit @ self._unit.T)
        self._k = min(DEFAULT_NEIGHBOURS, n - 1)
        self._truth = _members(own, self._k)

    def measure(self, translated: Tensor) -> Measured:
        """Measure translated vectors (n, d_y) of the same items, centred alike. Raises ValueError
        for NaN or infinity.
        """
        cosines = _unit(translated) @ self._unit.T
        own = cosines.diagonal().clone()
        if not bool(own.isfinite().all()):
            raise ValueError("translated vectors hold NaN or infinity")
        ranks = torch.count_nonzero(cosines >= own[:, None], dim=1)
        _without_self(cosines)
        recalls = _shared(cosines, self._truth, self._k)
        return Measured(
            cosine=float(own.double().mean()),
            mrr=float((1.0 / ranks.double()).mean()),
            recall=float(recalls.double().mean()),
        )


def _unit(vectors: Tensor) -> Tensor:
    vectors = vectors.float()
    return unit_rows(vectors, row_norms(vectors))


def _without_self(cosines: Tensor) -> Tensor:
    """Exclude each item from its own neighbours, in place."""
    return cosines.fill_diagonal_(-torch.inf)


def _shared(cosines: Tensor, truth: Tensor, k: int) -> Tensor:
    """(n,) float32: the share of each item's k nearest that is true."""
    return truth.gather(1, cosines.topk(k, dim=1).indices).float().mean(dim=1)


def _members(cosines: Tensor, k: int) -> Tensor:
    """(n, n) bool: which items are among the k nearest of each."""
    best = cosines.topk(k, dim=1).indices
    return torch.zeros_like(cosines, dtype=torch.bool).scatter_(1, best, value=True)
