"""An index of FAISS in memory, whose rows are found by their ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import faiss
import numpy as np
from faiss.contrib.factory_tools import reverse_index_factory
from numpy.typing import NDArray

from app.errors import StoreUnsupported
from app.stores.port import Metric, StoreId, StoreVectors

#: how far the length of a vector may be from 1, for inner products to count as cosines
UNIT_TOLERANCE = 0.02

KINDS = (
    faiss.IndexFlat,
    faiss.IndexHNSW,
    faiss.IndexIVF,
    faiss.IndexScalarQuantizer,
    faiss.IndexPQ,
)
METRICS = (faiss.METRIC_INNER_PRODUCT, faiss.METRIC_L2)


class LoadedIndex:
    """An index in memory, whose rows are found by id.

    has_ids   it stores ids; else they are positions
    is_lossy  it stores approximations of vectors
    sorted    (n,) ids of the rows, ascending
    """

    def __init__(self, outer: Any) -> None:
        self._outer, self.inner = outer, inner_of(outer)
        inner, is_ivf = self.inner, isinstance(self.inner, faiss.IndexIVF)
        if not isinstance(inner, KINDS) or inner.metric_type not in METRICS:
            raise refused("neither a flat, HNSW, IVF, SQ nor PQ index of inner products or L2")
        self.has_ids = is_ivf or outer is not inner
        #: whether the inner index names rows by their ids, and not by positions
        self._by_id = is_ivf and outer is inner
        ids = np.arange(inner.ntotal, dtype=np.int64)
        if self.has_ids:
            ids = _listed_ids(inner) if self._by_id else faiss.vector_to_array(outer.id_map)
        self._ids, self.sorted = ids, np.sort(ids)
        names = ids.tolist()
        self._keys = dict(zip(names, names if self._by_id else range(len(names)), strict=True))
        if len(self._keys) != inner.ntotal:
            raise refused("one that has several rows of one id")
        if is_ivf:
            inner.set_direct_map_type(faiss.DirectMap.Hashtable)  # for `reconstruct`
        #: what an exact search reads
        self._storage = faiss.downcast_index(getattr(inner, "storage", inner))
        self.is_lossy = not isinstance(self._storage, faiss.IndexFlat | faiss.IndexIVFFlat)
        self.metric: Metric = "euclidean"
        if inner.metric_type == faiss.METRIC_INNER_PRODUCT:
            some = self.find(self.sorted[:: max(1, inner.ntotal // 256)].tolist())[1]
            is_unit = np.abs(np.linalg.norm(some, axis=1) - 1) < UNIT_TOLERANCE
            self.metric = "cosine" if is_unit.all() else "dot"

    def find(self, ids: Sequence[StoreId]) -> tuple[list[StoreId], StoreVectors]:
        """Return those of the ids that exist, and their vectors (n, d)."""
        found = [id for id in ids if id in self._keys]
        keys = np.asarray([self._keys[id] for id in found], np.int64)
        return found, self.inner.reconstruct_batch(keys)

    def search(
        self, queries: StoreVectors, k: int, exact: bool
    ) -> Iterator[tuple[list[StoreId], NDArray[np.float32]]]:
        """Yield ids and scores of the k nearest rows of each query, the largest score first."""
        if self.metric == "cosine":
            lengths = np.linalg.norm(queries, axis=1, keepdims=True)
            queries = queries / np.maximum(lengths, 1e-30)
        exact = exact or k >= len(self.sorted)  # a graph need not reach every row
        searched, options = self._storage if exact else self.inner, {}
        if exact and isinstance(searched, faiss.IndexIVF):
            options["params"] = faiss.SearchParametersIVF(nprobe=searched.nlist)
        numbers, most = np.ascontiguousarray(queries, np.float32), max(1, min(k, len(self.sorted)))
        for scores, keys in zip(*searched.search(numbers, most, **options), strict=True):
            scores, keys = scores[keys >= 0], keys[keys >= 0]
            if self.metric == "euclidean":
                scores = -np.sqrt(np.maximum(scores, 0))
            yield (keys if self._by_id else self._ids[keys]).tolist(), scores

    def empty_like(self, dim: int) -> Any:
        """Return an empty index of the same type. Raises StoreUnsupported."""
        try:
            name = reverse_index_factory(self._outer)
            made = faiss.index_factory(dim, name, self.inner.metric_type)
        except (RuntimeError, NotImplementedError, KeyError, AssertionError) as error:
            raise refused(
                f"of a type that FAISS cannot build with {dim} dimensions: {error}"
            ) from None
        for name in ("efConstruction", "efSearch") if hasattr(self.inner, "hnsw") else ():
            setattr(inner_of(made).hnsw, name, getattr(self.inner.hnsw, name))
        if isinstance(self.inner, faiss.IndexIVF):
            inner_of(made).nprobe = self.inner.nprobe
        return made


def inner_of(index: Any) -> Any:
    """Return the index inside an IndexIDMap or IndexIDMap2, or the index itself."""
    return faiss.downcast_index(index.index) if isinstance(index, faiss.IndexIDMap) else index


def least_rows(index: Any) -> int:
    """Return how few rows can train an index; 0 if it needs no training."""
    if index.is_trained:
        return 0
    inner = inner_of(index)
    coded = faiss.downcast_index(getattr(inner, "storage", inner))
    return max(1, getattr(inner, "nlist", 1), coded.pq.ksub if hasattr(coded, "pq") else 1)


def refused(what: str) -> StoreUnsupported:
    return StoreUnsupported(
        f"The index is {what}. Build the vectors into another one, such as `IDMap2,HNSW32`, with "
        "faiss.index_factory, and name that file.",
        field="collection",
    )


def _listed_ids(ivf: Any) -> NDArray[np.int64]:
    """Return the ids (n,) in the lists of an IVF index."""
    sizes = ((each, ivf.invlists.list_size(each)) for each in range(ivf.nlist))
    parts = [faiss.rev_swig_ptr(ivf.invlists.get_ids(each), size) for each, size in sizes if size]
    return np.concatenate([np.zeros(0, np.int64), *parts])
