"""FAISS for the contract suite: an index file, beside which its application keeps the payloads."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from app.stores.port import StoreId, StoreLocation
from tests.stores.cases.base import Rows, StoreCase

Read = dict[StoreId, tuple[np.ndarray, dict[str, Any]]]


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

    def __init__(self) -> None:
        #: clients of one file take turns, as each of them writes it anew
        self._turns = threading.Lock()

    def path(self, location: StoreLocation) -> Path:
        return Path(location.url, location.collection)

    def fill(self, folder: Path, rows: Rows) -> StoreLocation:
        location = StoreLocation("faiss", str(folder), "items.faiss")
        self._write(location, self._rows(rows))
        return location

    def insert(self, location: StoreLocation, rows: Rows) -> None:
        with self._turns:
            self._write(location, self.read(location) | self._rows(rows))

    def delete(self, location: StoreLocation, ids: Sequence[StoreId]) -> None:
        with self._turns:
            kept = {id: row for id, row in self.read(location).items() if id not in ids}
            self._write(location, kept)

    def read(self, location: StoreLocation) -> Read:
        index = faiss.read_index(str(self.path(location)))
        payloads = dict(json.loads(self.path(location).with_suffix(".json").read_text()))
        return {
            id: (index.reconstruct(id), payloads.get(id, {}))
            for id in faiss.vector_to_array(index.id_map).tolist()
        }

    def _rows(self, rows: Rows) -> Read:
        return {
            id: (vector, dict(payload))
            for id, vector, payload in zip(rows.ids, rows.vectors, rows.payloads, strict=True)
        }

    def _write(self, location: StoreLocation, rows: Read) -> None:
        [dim] = {len(vector) for vector, _ in rows.values()}
        payloads = [[id, payload] for id, (_, payload) in rows.items()]
        self.path(location).with_suffix(".json").write_text(json.dumps(payloads))
        save(build({id: vector for id, (vector, _) in rows.items()}, dim), self.path(location))
