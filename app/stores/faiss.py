"""FAISS as a Store: a file of a flat or HNSW index, which holds ids and vectors and nothing else.

A migration writes an index file of the same type next to the old one.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from faiss.contrib.factory_tools import reverse_index_factory
from numpy.typing import NDArray

from app.errors import StoreChanged, StoreUnsupported
from app.stores import port as base
from app.stores.common import as_json, random_runs, row_number, rows_checksum, store_faults
from app.stores.port import Cursor, Hits, Page, Search, Side, StoreId, StoreVectors
from app.stores.staged import StagedVectors

STORE = "The FAISS store"

#: rows that are read or added to an index at once
ROWS_AT_ONCE = 10_000

#: how far the length of a vector may be from 1, for inner products to count as cosines
UNIT_TOLERANCE = 0.02

POSITIONS = base.StoreNote(
    "ids-are-positions",
    "The index stores no ids, so that a row's id is its position. Wrap it in an `IndexIDMap2` for "
    "ids that stay when rows are deleted.",
)


class LoadedIndex:
    """An index in memory, whose rows are found by id.

    has_ids  it stores ids; else they are positions
    sorted   (n,) ids of the rows, ascending
    """

    def __init__(self, outer: Any) -> None:
        self.has_ids = isinstance(outer, faiss.IndexIDMap)
        self.inner = inner = faiss.downcast_index(outer.index) if self.has_ids else outer
        metrics = (faiss.METRIC_INNER_PRODUCT, faiss.METRIC_L2)
        ids = np.arange(inner.ntotal, dtype=np.int64)
        if self.has_ids:
            ids = faiss.vector_to_array(outer.id_map)
        self._outer, self._ids, self.sorted = outer, ids, np.sort(ids)
        self._places = {id: place for place, id in enumerate(ids.tolist())}
        if (
            not isinstance(inner, faiss.IndexFlat | faiss.IndexHNSWFlat)
            or inner.metric_type not in metrics
            or len(self._places) < len(ids)
        ):
            raise StoreUnsupported(
                "The index is neither a flat nor an HNSW index of inner products or L2, alone or "
                "in an `IndexIDMap`, or it has several rows of one id. Build the vectors into "
                "another one, such as `IDMap2,HNSW32`, with faiss.index_factory, and name that "
                "file.",
                field="collection",
            )
        self.metric: base.Metric = "euclidean"
        if inner.metric_type == faiss.METRIC_INNER_PRODUCT:
            some = self.find(self.sorted[:: max(1, len(ids) // 256)].tolist())[1]
            lengths = np.linalg.norm(some, axis=1)
            self.metric = "cosine" if (abs(lengths - 1) < UNIT_TOLERANCE).all() else "dot"

    def find(self, ids: Sequence[StoreId]) -> tuple[list[StoreId], StoreVectors]:
        """Return those of the ids that exist, and their vectors (n, d)."""
        found = [id for id in ids if id in self._places]
        places = np.asarray([self._places[id] for id in found], np.int64)
        return found, self.inner.reconstruct_batch(places)

    def search(
        self, queries: StoreVectors, k: int, exact: bool
    ) -> Iterator[tuple[list[StoreId], NDArray[np.float32]]]:
        """Yield ids and scores of the k nearest rows of each query, the largest score first."""
        if self.metric == "cosine":
            lengths = np.linalg.norm(queries, axis=1, keepdims=True)
            queries = queries / np.maximum(lengths, 1e-30)
        rows, searched = len(self.sorted), self.inner
        if exact or k >= rows:  # a graph need not reach every row
            searched = faiss.downcast_index(getattr(searched, "storage", searched))
        numbers, most = np.ascontiguousarray(queries, np.float32), max(1, min(k, rows))
        for scores, places in zip(*searched.search(numbers, most), strict=True):
            scores, places = scores[places >= 0], places[places >= 0]
            if self.metric == "euclidean":
                scores = -np.sqrt(np.maximum(scores, 0))
            yield self._ids[places].tolist(), scores

    def empty_like(self, dim: int) -> Any:
        """Return an empty index of the same type."""
        made = faiss.index_factory(dim, reverse_index_factory(self._outer), self.inner.metric_type)
        if isinstance(self.inner, faiss.IndexHNSW):
            graph = (faiss.downcast_index(made.index) if self.has_ids else made).hnsw
            graph.efConstruction = self.inner.hnsw.efConstruction
            graph.efSearch = self.inner.hnsw.efSearch
        return made


class FaissStore(base.Store):
    """An index file in a folder."""

    capabilities = base.Capabilities()

    def __init__(self, location: base.StoreLocation) -> None:
        self.location = location
        self.folder = Path(location.url.removeprefix("file://"))
        self.path = self.folder / location.collection
        #: held by the thread that reads the file
        self._lock = threading.Lock()
        #: the index, and numbers that change when its file is written or replaced
        self._loaded: tuple[Any, LoadedIndex] | None = None

    def close(self) -> None:
        self._loaded = None

    def load(self) -> LoadedIndex:
        """Return the index of the file as it is now; threads wait for the one that reads.

        Raises StoreChanged without a file, and StoreUnsupported for a symbolic link to one outside
        the address.
        """
        with self._lock, store_faults(STORE, (RuntimeError,)):
            if not self.path.is_file():
                raise StoreChanged(f"The address has no file `{self.location.collection}`.")
            if not self.path.resolve().is_relative_to(self.folder.resolve()):
                raise StoreUnsupported(
                    f"`{self.path.name}` is a symbolic link to a file outside the address. Ask the "
                    "operator to add the folder of that file, or move it.",
                    field="collection",
                )
            found = self.path.stat()
            now = found.st_ino, found.st_size, found.st_mtime_ns
            if self._loaded is None or self._loaded[0] != now:
                self._loaded = now, LoadedIndex(faiss.read_index(str(self.path)))
            return self._loaded[1]

    # --- reading ------------------------------------------------------------------------------

    def facts(self) -> base.StoreFacts:
        index = self.load()
        return base.StoreFacts(
            rows=len(index.sorted),
            dim=index.inner.d,
            metric=index.metric,
            indexed=isinstance(index.inner, faiss.IndexHNSW),
            vector_bytes=self.path.stat().st_size,
            notes=() if index.has_ids else (POSITIONS,),
        )

    def scroll(self, cursor: Cursor | None, limit: int, side: Side = "old") -> Page:
        index = self.load()
        start = 0 if cursor is None else int(np.searchsorted(index.sorted, cursor, "right"))
        ids, vectors = index.find(index.sorted[start : start + limit].tolist())
        return Page(ids, vectors, ids[-1] if len(ids) == limit else None)

    def sample(self, count: int, seed: int = 0) -> Page:
        index = self.load()
        runs = random_runs(len(index.sorted), count, seed)
        chosen = [index.sorted[start : start + length].tolist() for start, length in runs]
        return Page(*index.find([id for run in chosen for id in run]))

    def fetch(self, ids: Sequence[StoreId], side: Side = "old") -> Page:
        return Page(*self.load().find(ids))

    def migration(self, tag: str, dim: int) -> base.NewVectors:
        return SecondFile(self, tag, dim)

    def read_field(self, ids: Sequence[StoreId], field: str) -> Sequence[str | None]:
        raise StoreUnsupported(
            "An index of FAISS holds no texts. Leave out `text_field`, and send the texts of its "
            "results to `/rescore`.",
            field="text_field",
        )

    def find_nearest(self, wanted: Search) -> Sequence[Hits]:
        index = self.load()
        if wanted.queries.shape[1] != index.inner.d:
            raise StoreChanged(f"The index has vectors of {index.inner.d} dimensions now. Repeat.")
        hits = []
        for ids, scores in index.search(wanted.queries, wanted.k, wanted.exact):
            vectors = index.find(ids)[1] if wanted.vectors else None
            hits.append(
                Hits(ids, scores.tolist(), vectors, [{}] * len(ids) if wanted.payload else None)
            )
        return hits


class SecondFile(StagedVectors):
    """The new vectors of one migration, which become an index file of the same type."""

    def __init__(self, store: FaissStore, tag: str, dim: int) -> None:
        beside = f"{store.path.name}.anchorage-{tag}-"
        super().__init__(STORE, store.path.with_name(f"{beside}state"), dim)
        self._source, self._path = store, store.path.with_name(f"{beside}new")

    def ids(self) -> Sequence[StoreId]:
        ids: list[StoreId] = self._source.load().sorted.tolist()
        return ids

    def checksum(self, hear: base.HearRows) -> base.RowsChecksum:
        return rows_checksum([[row_number(as_json(id)) for id in self.ids()]], hear)

    def publish(self, ids: Sequence[StoreId]) -> None:
        """Write the index file, whole or not at all."""
        old = self._source.load()
        index, half = old.empty_like(self._dim), self._path.with_name(f"{self._path.name}.half")
        with store_faults(STORE, (RuntimeError,)):
            for start in range(0, len(ids), ROWS_AT_ONCE):
                part = ids[start : start + ROWS_AT_ONCE]
                new = self.read(part)
                numbers = np.asarray(new.ids, np.int64)
                if old.has_ids:
                    index.add_with_ids(new.vectors, numbers)
                else:  # whose ids are positions, so that no row may be left out
                    vectors = np.zeros((len(part), self._dim), np.float32)
                    vectors[numbers - start] = new.vectors
                    index.add(vectors)
            try:
                faiss.write_index(index, str(half))
                shutil.copymode(self._source.path, half)
                half.replace(self._path)
            finally:
                half.unlink(missing_ok=True)

    def withdraw(self) -> None:
        with store_faults(STORE):
            self._path.unlink(missing_ok=True)
