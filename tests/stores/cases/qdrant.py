"""Qdrant in local mode, written to by its own client.

It lets one handle into a folder, so the clients of this process share the connector's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from qdrant_client import QdrantClient, models

from app.stores.port import StoreId, StoreLocation
from app.stores.qdrant.client import QdrantConnection
from tests.stores.cases.base import LiveStoreCase, Rows


class LocalQdrantCase(LiveStoreCase):
    """A collection with a vector `text`. Clients use its alias."""

    kind = "qdrant"

    def visit(self, location: StoreLocation):
        return QdrantConnection(location.url, "").session()

    def fill(self, folder: Path, rows: Rows) -> StoreLocation:
        with_client = QdrantClient(path=str(folder / "qdrant"))
        params = models.VectorParams(size=rows.vectors.shape[1], distance=models.Distance.COSINE)
        with_client.create_collection("items-1", {"text": params})
        alias = models.CreateAlias(alias_name="items", collection_name="items-1")
        with_client.update_collection_aliases([models.CreateAliasOperation(create_alias=alias)])
        with_client.close()
        location = StoreLocation(
            self.kind, str(folder / "qdrant"), "items", vector_field="text", text_field="text"
        )
        self.insert(location, rows)
        return location

    def insert(self, location: StoreLocation, rows: Rows) -> None:
        with self.visit(location) as client:
            client.upsert(
                location.collection,
                [
                    models.PointStruct(id=each, vector={"text": vector.tolist()}, payload=payload)
                    for each, vector, payload in zip(
                        rows.ids, rows.vectors, rows.payloads, strict=True
                    )
                ],
            )

    def delete(self, location: StoreLocation, ids: Sequence[StoreId]) -> None:
        with self.visit(location) as client:
            client.delete(location.collection, models.PointIdsList(points=list(ids)))

    def change_text(self, location: StoreLocation, id: StoreId, text: str) -> None:
        with self.visit(location) as client:
            client.set_payload(location.collection, {"text": text}, points=[id])

    def read(self, location: StoreLocation) -> dict[StoreId, tuple[np.ndarray, dict[str, Any]]]:
        with self.visit(location) as client:
            records, _ = client.scroll(
                location.collection, limit=10_000, with_vectors=["text"], with_payload=True
            )
        return {each.id: (np.float32(each.vector["text"]), each.payload) for each in records}
