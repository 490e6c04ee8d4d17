"""FAISS for the contract suite: an index file, which holds no payloads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from app.stores.port import StoreId, StoreLocation
from tests.stores.cases.base import Rows, StoreCase


def build(rows: Mapping[StoreId, np.ndarray], dim: int, kind: str = "IDMap2,HNSW16") -> Any:
    """Return an index of cosines, as its users build it."""
    index = faiss.index_factory(dim, kind, faiss.METRIC_INNER_PRODUCT)
    vectors = np.asarray(list(rows.values()), np.float32).reshape(-1, dim)
    index.train(vectors)
    if kind.startswith("IDMap"):
        index.add_with_ids(vectors, np.asarray(list(rows), np.int64))
    else:
        index.add(vectors)
    return index


def save(index: Any, path: Path) -> None:
    """Write an index next to the other one, and rename it."""
    half = path.with_name("half")
    faiss.write_index(index, str(half))
    half.replace(path)


class FaissCase(StoreCase):
    kind = "faiss"
    has_payloads = False

    def path(self, location: StoreLocation) -> Path:
        return Path(location.url, location.collection)

    def fill(self, folder: Path, rows: Rows) -> StoreLocation:
        location = StoreLocation("faiss", str(folder), "items.faiss")
        self._write(location, dict(zip(rows.ids, rows.vectors, strict=True)))
        return location

    def insert(self, location: StoreLocation, rows: Rows) -> None:
        new = dict(zip(rows.ids, rows.vectors, strict=True))
        self._write(location, self._vectors(location) | new)

    def delete(self, location: StoreLocation, ids: Sequence[StoreId]) -> None:
        rows = self._vectors(location)
        self._write(location, {id: rows[id] for id in rows if id not in ids})

    def read(self, location: StoreLocation) -> dict[StoreId, tuple[np.ndarray, dict[str, Any]]]:
        return {id: (vector, {}) for id, vector in self._vectors(location).items()}

    def _vectors(self, location: StoreLocation) -> dict[StoreId, np.ndarray]:
        index = faiss.read_index(str(self.path(location)))
        ids = faiss.vector_to_array(index.id_map).tolist()
        return {id: index.reconstruct(id) for id in ids}

    def _write(self, location: StoreLocation, rows: Mapping[StoreId, np.ndarray]) -> None:
        [dim] = {len(vector) for vector in rows.values()}
        save(build(rows, dim), self.path(location))
