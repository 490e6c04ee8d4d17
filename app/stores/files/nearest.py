"""The nearest rows of queries, from blocks of vectors, in memory that k bounds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from app.stores.base import StoreVectors


class NearestRows:
    """Keeps the k best rows of each query (q, d). Larger scores are nearer."""

    def __init__(self, queries: StoreVectors, k: int, metric: str) -> None:
        self._queries = np.asarray(queries, np.float32)
        self._k, self._metric = k, metric
        if metric == "cosine":
            self._queries = _unit(self._queries)
        self._rows = np.empty((len(queries), 0), np.int64)
        self._scores = np.empty((len(queries), 0), np.float32)

    def add(self, rows: NDArray[np.int64], vectors: StoreVectors) -> None:
        """Compare a block (n, d) with all queries."""
        scores = self._score(vectors)
        self._rows = np.concatenate([self._rows, np.broadcast_to(rows, scores.shape)], axis=1)
        self._scores = np.concatenate([self._scores, scores], axis=1)
        if self._scores.shape[1] > self._k:
            best = np.argpartition(-self._scores, self._k - 1, axis=1)[:, : self._k]
            self._rows = np.take_along_axis(self._rows, best, axis=1)
            self._scores = np.take_along_axis(self._scores, best, axis=1)

    def _score(self, vectors: StoreVectors) -> StoreVectors:
        if self._metric == "cosine":
            vectors = _unit(vectors)
        products = self._queries @ vectors.T
        if self._metric != "euclidean":
            return products
        squares = (self._queries**2).sum(1)[:, None] + (vectors**2).sum(1) - 2 * products
        return np.asarray(-np.sqrt(np.maximum(squares, 0)), np.float32)

    def results(self) -> list[tuple[NDArray[np.int64], StoreVectors]]:
        """Return rows and scores of each query, best first; equal scores by row."""
        found = []
        for rows, scores in zip(self._rows, self._scores, strict=True):
            order = np.lexsort((rows, -scores))
            found.append((rows[order], scores[order]))
        return found


def _unit(vectors: StoreVectors) -> StoreVectors:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(norms > 0, norms, 1), np.float32)
